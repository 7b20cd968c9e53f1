/* TCP between the processes of a run, for the watch and for what must be exchanged before there is anything better. */
#ifndef TESTS_MULTIGPU_SOCKET_H
#define TESTS_MULTIGPU_SOCKET_H

#include <stddef.h>

enum { SOCKET_HOST = 64, SOCKET_ADDRESSES = 8 };

/* Where a process can be reached: its host's name and the numbers of its interfaces, in text. */
typedef struct socket_address {
    char host[SOCKET_HOST];
    char numbers[SOCKET_ADDRESSES][SOCKET_HOST];
    int port;
} socket_address;

/* A listening socket on a port, 0 = any; or -1. */
int socket_listen(int port, socket_address *address);
/* A connection to the first of a process's addresses that answers, tried for so many seconds; or -1. */
int socket_connect(const socket_address *address, double seconds);
/* Sends or receives all bytes and returns 0; nonzero if the other end is gone. Blocks. */
int socket_send(int fd, const void *data, size_t bytes);
int socket_receive(int fd, void *data, size_t bytes);

#endif
