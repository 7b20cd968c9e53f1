/* `trope apply FILE -o OUT` on files whose tensors have the names that it knows, and any types, shapes, numbers and options. */
#include "command.h"
#include "fuzz/file.h"

static int take_options(input *in, char **arguments, int most)
{
    static const char *const options[] = {"--layout=bshd",
                                          "--layout=sbhd",
                                          "--layout=thd",
                                          "--layout=bhsd",
                                          "--pairing=half",
                                          "--pairing=interleaved",
                                          "--pairing-out=half",
                                          "--backward",
                                          "--in-place",
                                          "--rotary-dim=2",
                                          "--rotary-dim=4",
                                          "--rotary-offset=2",
                                          "--rope-theta=10000",
                                          "--mscale=2",
                                          "--rounding=native",
                                          "--inverse",
                                          "--padding=zero",
                                          "--padding=copy",
                                          "--padding=rotate",
                                          "--packed-positions",
                                          "--cp-size=2",
                                          "--cp-rank=1",
                                          "--cp-layout=zigzag",
                                          "--cp-layout=flat",
                                          "--out-of-range=clamp",
                                          "--windows=2",
                                          "--axis-map=sections",
                                          "--axis-sections=1,1,0",
                                          "--axis-sections=2,1,1",
                                          "--table-rows=tokens",
                                          "--columns=half",
                                          "--threads=1",
                                          "--isa=portable",
                                          "--scaling=linear:factor=2",
                                          "--expect=/dev/null"};
    int count = 0;
    while (count < most && take_below(in, 4))
        arguments[count++] = (char *)(uintptr_t)options[take_below(in, sizeof options / sizeof options[0])];
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char folder[] = "/tmp/trope-fuzz-XXXXXX", out[64];
    input in = {data, size};
    char *arguments[16] = {(char *)(uintptr_t) "apply", (char *)(uintptr_t) "--device=cpu"};
    if (!out[0]) {
        HOLDS(mkdtemp(folder));
        snprintf(out, sizeof out, "%s/out.safetensors", folder);
    }
    int count = 2 + take_options(&in, arguments + 2, 10);
    arguments[count++] = (char *)(uintptr_t) "-o";
    arguments[count++] = out;
    arguments[count++] = (char *)(uintptr_t)take_file(&in);
    const int result = command_apply(count, arguments);
    HOLDS(result == RESULT_OK || result == RESULT_REFUSED);
    return 0;
}
