#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "seconds.h"

#define CONNECT_SECONDS 2.0 /* for one address, before the next one is tried */

/* Lists the loopback address last, because it only works on one host. */
static void list_interfaces(socket_address *address)
{
    struct ifaddrs *all = NULL;
    int count = 0;
    if (getifaddrs(&all))
        all = NULL;
    for (int loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *i = all; i && count < SOCKET_ADDRESSES; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
                !!(i->ifa_flags & IFF_LOOPBACK) != loopback)
                continue;
            struct sockaddr_in in;
            memcpy(&in, i->ifa_addr, sizeof in);
            inet_ntop(AF_INET, &in.sin_addr, address->numbers[count++], SOCKET_HOST);
        }
    if (all)
        freeifaddrs(all);
}

static void prepare(int fd)
{
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int socket_listen(int port, socket_address *address)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in at4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int on = 1, off = 0;
    socklen_t size = sizeof at;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    if (fd >= 0)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int failed = fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at);
    if (failed) { /* a host without IPv6 */
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        failed = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
                 bind(fd, (struct sockaddr *)&at4, sizeof at4);
    }
    if (failed || listen(fd, SOMAXCONN) || getsockname(fd, (struct sockaddr *)&at, &size)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    address->port = ntohs(at.sin6_port); /* IPv4 has the port at the same offset */
    (void)gethostname(address->host, sizeof address->host - 1);
    list_interfaces(address);
    return fd;
}

/* Calls connect() with a time limit, so that an address that is not routed does not delay the others. */
static int connect_within(int fd, const struct addrinfo *to)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;
    if (!connect(fd, to->ai_addr, to->ai_addrlen))
        return 0;
    if (errno != EINPROGRESS || poll(&wait, 1, (int)(1000 * CONNECT_SECONDS)) != 1)
        return 1;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) || error;
}

static int connect_to(const char *host, int port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    int fd = -1;
    snprintf(service, sizeof service, "%d", port);
    if (!host[0] || getaddrinfo(host, service, &hints, &found))
        return -1;
    for (const struct addrinfo *i = found; i && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, i->ai_protocol);
        if (fd >= 0 && connect_within(fd, i)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

int socket_connect(const socket_address *address, double seconds)
{
    const double end = seconds_now() + seconds;
    int fd = -1;
    do {
        fd = connect_to(address->host, address->port);
        for (int i = 0; i < SOCKET_ADDRESSES && fd < 0; i++)
            fd = connect_to(address->numbers[i], address->port);
        if (fd < 0)
            (void)poll(NULL, 0, 100);
    } while (fd < 0 && seconds_now() < end);
    if (fd >= 0)
        prepare(fd);
    return fd;
}

static int wait_for(int fd, short events)
{
    struct pollfd wait = {.fd = fd, .events = events};
    return poll(&wait, 1, -1) < 0 && errno != EINTR;
}

static int must_wait(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int socket_send(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || !must_wait() || wait_for(fd, POLLOUT))
            return 1;
    }
    return 0;
}

int socket_receive(int fd, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = recv(fd, (char *)data + done, bytes - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || !must_wait() || wait_for(fd, POLLIN))
            return 1;
    }
    return 0;
}
