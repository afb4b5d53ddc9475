/* driver SEED FIRST COUNT [KINDS]: runs cases FIRST to FIRST + COUNT - 1. The working directory
 * contains the libraries. Each case prints its number and kind before it begins; KINDS, a text such
 * as "call,fork", limits the kinds. */
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

kiln_host_library *libraries[N_LIBRARIES];
const char *paths[N_LIBRARIES] = {"./graphs.so", "./outers.so", "./loaders.so"};

static const struct {
    const char *name;
    int weight;
    void (*run)(draws *d);
} kinds[] = {
    {"call", 60, one_call},       {"failing", 8, failing_call},   {"values", 10, some_values},
    {"nested", 1, nested_values}, {"packed", 4, registered_functions},
    {"loaders", 4, loader_calls}, {"opening", 2, opening},        {"lives", 2, lives},
    {"threads", 4, several_threads}, {"fork", 2, a_fork},         {"elsewhere", 1, elsewhere},
    {"metadata", 1, large_metadata}, {"newer", 2, newer_container}, {"environment", 2, environment},
    {"ending", 2, ending},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- random numbers: SplitMix64, which makes neighbouring seeds independent ------------------ */

uint64_t draw(draws *d, uint64_t below)
{
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return below == 0 ? z : z % below;
}

int seldom(draws *d, uint64_t times)
{
    return draw(d, times) == 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

static pthread_t main_thread;

/* Unbuffered, as the process may crash in the next line; other threads print nothing. */
void say(const char *format, ...)
{
    char text[256];
    va_list arguments;
    if (!pthread_equal(pthread_self(), main_thread))
        return;
    va_start(arguments, format);
    const int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (write(1, text, (size_t)(size < 255 ? size : 255)) < 0)
        abort();
}

void found(const char *format, ...)
{
    char text[512] = "\n! ";
    va_list arguments;
    va_start(arguments, format);
    const int size = 3 + vsnprintf(text + 3, sizeof text - 4, format, arguments);
    va_end(arguments);
    const size_t length = (size_t)(size < 510 ? size : 510);
    text[length] = '\n';
    if (write(1, text, length + 1) < 0)
        abort();
}

void check_code(const kiln_host_library *library, int code, const char *what)
{
    if (code < KILN_OK || code > KILN_ERROR_INDEX)
        found("%s gave %d", what, code);
    else if (code != KILN_OK && library->api.last_error()[0] == 0)
        found("%s gave %d without a sentence", what, code);
}

/* Of LeakSanitizer, NULL without it: returns nonzero if memory has leaked since the last check. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
enum { LEAK_CASES = 20 };

/* ---- the loop -------------------------------------------------------------------------------- */

/* Report a case that loops. The timer counts CPU time of this process, so that a busy machine does
 * no harm; a case that sleeps for ever is found by the reader of the output, with a timeout. */
static void too_long(int number)
{
    static const char words[] = "\n! has not ended after 10 s of work\n";
    (void)number;
    if (write(1, words, sizeof words - 1) > 0)
        _exit(3);
}

static void run_case(uint64_t seed, uint64_t number, const char *only)
{
    draws d = {seed * 0x9E3779B97F4A7C15u ^ number};
    int total = 0, k = 0;
    draw(&d, 2);
    for (int i = 0; i < N_KINDS; i++)
        total += only == NULL || strstr(only, kinds[i].name) != NULL ? kinds[i].weight : 0;
    if (total == 0)
        exit(2);
    int left = (int)draw(&d, (uint64_t)total);
    for (k = 0;; k++) {
        left -= only == NULL || strstr(only, kinds[k].name) != NULL ? kinds[k].weight : 0;
        if (left < 0)
            break;
    }
    const struct itimerval limit = {{0, 0}, {10, 0}}, none = {{0, 0}, {0, 0}};
    say("\n@ %llu %s", (unsigned long long)number, kinds[k].name);
    setitimer(ITIMER_VIRTUAL, &limit, NULL);
    kinds[k].run(&d);
    setitimer(ITIMER_VIRTUAL, &none, NULL);
}

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    if (argc < 4)
        return 2;
    main_thread = pthread_self();
    if (strcmp(argv[1], "alone") == 0)
        return alone(argv[2], argv[3]);
    signal(SIGVTALRM, too_long);
    for (int i = 0; i < N_LIBRARIES; i++)
        if (kiln_host_open(paths[i], &libraries[i], &error) != KILN_OK) {
            fprintf(stderr, "%s\n", error.sentence);
            return 2;
        }
    const uint64_t seed = strtoull(argv[1], NULL, 10), first = strtoull(argv[2], NULL, 10);
    const uint64_t end = first + strtoull(argv[3], NULL, 10);
    for (uint64_t number = first; number < end; number++) {
        run_case(seed, number, argc > 4 ? argv[4] : NULL);
        if ((number + 1) % LEAK_CASES == 0 && __lsan_do_recoverable_leak_check != NULL &&
            __lsan_do_recoverable_leak_check() != 0)
            found("a leak, in this case or the %d before", LEAK_CASES - 1);
    }
    for (int i = 0; i < N_LIBRARIES; i++) {
        if (libraries[i]->api.live_objects != NULL && libraries[i]->api.live_objects() != 0)
            found("%s: %lld values are left at the end", paths[i],
                  (long long)libraries[i]->api.live_objects());
        kiln_host_close(libraries[i]);
    }
    say("\n= done\n");
    return 0;
}
