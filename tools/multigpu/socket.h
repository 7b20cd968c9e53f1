/* TCP between the processes of a run. The watch uses it, and so does any exchange before a better communicator is ready. */
#ifndef TESTS_MULTIGPU_SOCKET_H
#define TESTS_MULTIGPU_SOCKET_H

#include <stddef.h>

enum { SOCKET_HOST = 64, SOCKET_ADDRESSES = 8 };

/* The address of a process: its host's name and the numeric addresses of its interfaces, as text. */
typedef struct socket_address {
    char host[SOCKET_HOST];
    char numbers[SOCKET_ADDRESSES][SOCKET_HOST];
    int port;
} socket_address;

/* Opens a listening socket on a port, 0 = any port. Returns -1 on failure. */
int socket_listen(int port, socket_address *address);
/* Connects to the first address of a process that answers, trying for this many seconds. Returns -1 on failure. */
int socket_connect(const socket_address *address, double seconds);
/* Send or receive all bytes and return 0, or nonzero if the other end has closed the connection. They block. */
int socket_send(int fd, const void *data, size_t bytes);
int socket_receive(int fd, void *data, size_t bytes);

#endif
