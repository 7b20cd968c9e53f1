/* Status names, the last error of each thread, the version and the description of the build. */
#include <pthread.h>

#include "api/valid_call.h"
#include "support/check.h"

static void status_names(void)
{
    CHECK(strcmp(trope_status_name(TROPE_OK), "TROPE_OK") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_NULL), "TROPE_ERROR_NULL") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_ARGUMENT), "TROPE_ERROR_ARGUMENT") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_OVERLAP), "TROPE_ERROR_OVERLAP") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_OVERFLOW), "TROPE_ERROR_OVERFLOW") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_DATA), "TROPE_ERROR_DATA") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_UNSUPPORTED), "TROPE_ERROR_UNSUPPORTED") == 0);
    CHECK(strcmp(trope_status_name(TROPE_ERROR_DEVICE), "TROPE_ERROR_DEVICE") == 0);
    CHECK(trope_status_name(TROPE_ERROR_DEVICE + 1)[0] != 0);
    CHECK(trope_status_name(-1)[0] != 0);
    CHECK(trope_status_name(INT32_MIN)[0] != 0);
}

/* Runs on each thread. Makes a call fail 2000 times, with a number of this thread alone, and counts wrong messages. */
static void *fail_in_own_way(void *argument)
{
    const int32_t number = *(const int32_t *)argument;
    char words[64];
    long bad = 0;
    snprintf(words, sizeof words, "operand_count (%d)", number);
    bad += trope_last_error()[0] != 0 || trope_last_error_argument()[0] != 0;
    for (int i = 0; i < 2000; i++) {
        call c = call_make(TROPE_F32, 1, 1);
        c.args.operand_count = number;
        bad += trope_forward(call_args(&c)) != TROPE_ERROR_ARGUMENT;
        bad += strcmp(trope_last_error_argument(), "operand_count") != 0;
        bad += strstr(trope_last_error(), words) == NULL;
    }
    return (void *)(intptr_t)bad;
}

static void last_error_belongs_to_the_thread(void)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    int32_t numbers[THREADS];
    char before[512];
    trope_forward(NULL);
    snprintf(before, sizeof before, "%s", trope_last_error());
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = 100 + i;
        CHECK(pthread_create(&threads[i], NULL, fail_in_own_way, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *bad;
        CHECK(pthread_join(threads[i], &bad) == 0);
        CHECK_MESSAGE(bad == NULL, "thread %d saw %ld wrong messages", i, (long)(intptr_t)bad);
    }
    CHECK(strcmp(before, trope_last_error()) == 0);
}

static void last_error_describes_the_last_failure(void)
{
    CHECK(trope_forward(NULL) == TROPE_ERROR_NULL);
    CHECK(strcmp(trope_last_error(), "trope_forward: args is NULL") == 0);
    CHECK(trope_backward(NULL) == TROPE_ERROR_NULL);
    CHECK(strcmp(trope_last_error(), "trope_backward: args is NULL") == 0);
    CHECK(trope_forward(call_args(dense())) == TROPE_OK);
    CHECK(strcmp(trope_last_error(), "trope_backward: args is NULL") == 0);
    CHECK(strcmp(trope_last_error_argument(), "args") == 0);
    CHECK(strchr(trope_last_error(), '\n') == NULL);
}

static void version_matches_the_header(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", TROPE_VERSION_MAJOR, TROPE_VERSION_MINOR, TROPE_VERSION_PATCH);
    CHECK(strcmp(trope_version(), version) == 0);
    CHECK(strcmp(trope_version(), EXPECTED_VERSION) == 0); /* from CMake */
    CHECK(strstr(trope_info(), version) != NULL);
}

static void info_has_lines_of_name_and_value(void)
{
    const char *line = trope_info();
    int lines = 0;
    while (*line) {
        const char *end = strchr(line, '\n'), *colon = strstr(line, ": ");
        CHECK_MESSAGE(end && colon && colon > line && colon < end, "not a line of the form \"name: value\": %s", line);
        if (!end)
            return;
        lines++;
        line = end + 1;
    }
    CHECK(lines >= 4);
}

static void kernel_names_have_device_and_dtype(void)
{
    char name[64], same[64], small[5];
    trope_args *args = call_args(dense());
    args->isa = TROPE_ISA_PORTABLE;
    CHECK(trope_kernel_name(args, 0, name, sizeof name) == TROPE_OK);
    CHECK_MESSAGE(strncmp(name, "cpu-portable-f32", 16) == 0, "%s", name);
    CHECK(trope_kernel_name(args, 1, same, sizeof same) == TROPE_OK);
    args->dtype = TROPE_BF16;
    CHECK(trope_kernel_name(args, 0, name, sizeof name) == TROPE_OK);
    CHECK_MESSAGE(strstr(name, "bf16"), "%s", name);
    CHECK(trope_kernel_name(args, 0, small, sizeof small) == TROPE_OK);
    CHECK_MESSAGE(strcmp(small, "cpu-") == 0, "%s", small);
    CHECK(outputs_are_untouched());
}

int main(void)
{
    CHECK(trope_last_error()[0] == 0 && trope_last_error_argument()[0] == 0); /* nothing has failed yet */
    status_names();
    last_error_describes_the_last_failure();
    last_error_belongs_to_the_thread();
    version_matches_the_header();
    info_has_lines_of_name_and_value();
    kernel_names_have_device_and_dtype();
    return check_result();
}
