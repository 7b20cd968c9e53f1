#include "device_mirror.h"

#include "command.h"

/* Returns the index of the part, or the index of the next new one. */
static int find_part(const device_mirror *mirror, const void *host)
{
    int i = 0;
    while (i < mirror->count && mirror->parts[i].host != host)
        i++;
    return i;
}

static void release_part(const device_mirror *mirror, mirror_part *part)
{
    if (part->memory)
        mirror->device->release(part->memory, part->bytes);
    part->memory = NULL;
}

void *mirror_reserve(device_mirror *mirror, const void *host, size_t bytes)
{
    const int found = find_part(mirror, host);
    mirror_part *part = &mirror->parts[found];
    if (found == MIRROR_MAX_PARTS) {
        complain("a call has more than %d arrays", MIRROR_MAX_PARTS);
        return NULL;
    }
    if (found == mirror->count)
        mirror->count++;
    else if (part->memory && part->bytes == bytes)
        return part->memory;
    release_part(mirror, part);
    *part = (mirror_part){host, mirror->device->allocate(bytes, mirror->threads), bytes};
    if (!part->memory)
        complain("out of memory for %zu bytes on device %s", bytes, mirror->device->name);
    return part->memory;
}

void *mirror_upload(device_mirror *mirror, const void *host, size_t bytes)
{
    void *memory = mirror_reserve(mirror, host, bytes);
    return memory && !mirror->device->upload(memory, host, bytes) ? memory : NULL;
}

int mirror_download(const device_mirror *mirror, void *host)
{
    const mirror_part *part = &mirror->parts[find_part(mirror, host)];
    return mirror->device->download(host, part->memory, part->bytes);
}

typedef struct call_context {
    trope_args *args;
    int backward;
    const char *refused;
} call_context;

static int queue_call(void *context, int set, void *stream)
{
    call_context *call = context;
    (void)set;
    call->args->stream = stream;
    if (call->backward ? trope_backward(call->args) : trope_forward(call->args))
        call->refused = trope_last_error();
    return call->refused != NULL;
}

int mirror_run(const device_mirror *mirror, trope_args *args, int backward, const char **refused)
{
    call_context call = {args, backward, NULL};
    const device_work work = {queue_call, &call};
    const int failed = mirror->device->run(&work);
    *refused = call.refused;
    return failed;
}

void mirror_release(device_mirror *mirror)
{
    for (int i = 0; i < mirror->count; i++)
        release_part(mirror, &mirror->parts[i]);
    mirror->count = 0;
}
