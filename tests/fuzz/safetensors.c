/* The reader of safetensors files on any bytes, or on what is nearly a file: what it takes is all there. */
#include "safetensors.h"

#include "fuzz/file.h"

static unsigned sum_of_all; /* so that every byte is read */

static void check_tensors(const safetensors *file)
{
    char text[SAFETENSORS_TEXT];
    uint64_t expected = 0;
    for (int32_t i = 0; i < file->count; i++) {
        safetensor *t = &file->tensors[i];
        HOLDS(!safetensors_load(file, t));
        HOLDS(t->begin == expected && t->end - t->begin == t->elements * (uint64_t)value_size(t->type));
        HOLDS(safetensors_find(file, t->name) == t && strlen(safetensor_describe(t, text)) < sizeof text);
        for (uint64_t byte = 0; byte < t->end - t->begin; byte++)
            sum_of_all += ((unsigned char *)t->data)[byte];
        expected = t->end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    safetensors file;
    const char *path = take_below(&in, 8) ? take_file(&in) : file_of(in.data, in.left);
    if (!safetensors_open(path, &file))
        check_tensors(&file);
    safetensors_free(&file);
    return 0;
}
