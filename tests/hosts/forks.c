/* forks COUNT LIBRARY...: forks COUNT times while threads use the libraries, with every lock that they
 * have; each child uses all of them, and half of the children close them. The functions of a library are
 * those of tests/hosts/test_forks.py.
 * forks COUNT come-and-go LIBRARY...: meanwhile a thread loads and closes the last one. */
#include "check.h"
#include "kiln_host.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4, ROWS = 64, COLUMNS = 64, THREADS = 3 };

typedef struct user {
    kiln_host_library *library;
    kiln_host_executor *executor; /* one for all threads */
} user;

static user users[MOST];
static int count, live;
#if defined(__GLIBC__)
enum { STAYS = 0 };
#else
enum { STAYS = 1 }; /* dlclose() of musl does nothing: a library keeps its modules */
#endif
static uint32_t stop;
static const char *coming;
static kiln_host_error error;

/* ---- the host's side: a loader, and a function by name ------------------------------------------ */

static int load(void *context, const char *target_key, const kiln_artifact *artifacts, int n,
                void **module)
{
    (void)context, (void)target_key, (void)artifacts, (void)n;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    *module = &live;
    return KILN_OK;
}

static int double_it(void *module, const char *function, const kiln_value *arguments, int32_t n,
                     kiln_value *result)
{
    const kiln_tensor *const x = (const kiln_tensor *)arguments[0].as.pointer;
    const kiln_tensor *const y = (const kiln_tensor *)arguments[1].as.pointer;
    (void)module, (void)function, (void)n;
    for (int i = 0; i < 4; i++)
        ((float *)y->data)[i] = 2 * ((const float *)x->data)[i];
    result->kind = KILN_NONE;
    return KILN_OK;
}

static void unload(void *module)
{
    __atomic_sub_fetch((int *)module, 1, __ATOMIC_SEQ_CST);
}

static int hand_back(void *context, const kiln_value *arguments, int32_t n, kiln_value *result)
{
    const kiln_host_library *const library = (const kiln_host_library *)context;
    (void)n;
    library->api.retain(&arguments[0]);
    *result = arguments[0];
    return 0;
}

static void add_name(const kiln_host_library *library)
{
    kiln_value function;
    CHECK(library->api.make_function(hand_back, (void *)(uintptr_t)library, NULL, &function) == 0);
    CHECK(library->api.register_function("tests.forks", &function) == 0);
    library->api.release(&function);
}

static user open_user(const char *path)
{
    static const kiln_loader loader = {sizeof loader, NULL, load, double_it, unload};
    user made = {NULL, NULL};
    CHECK(kiln_host_open(path, &made.library, &error) == KILN_OK);
    made.library->api.set_num_threads(THREADS);
    CHECK(made.library->api.register_loader("tests_forks", &loader) == KILN_OK);
    add_name(made.library);
    CHECK(kiln_host_executor_create(made.library, &made.executor, &error) == KILN_OK);
    return made;
}

static void close_user(user *it)
{
    kiln_host_executor_destroy(it->executor);
    CHECK(it->library->api.register_function("tests.forks", NULL) == KILN_OK);
    kiln_host_close(it->library);
}

/* ---- using one: each of its locks ---------------------------------------------------------------- */

static void call_graph(const user *it, const char *name, float first)
{
    float in[4] = {1, 2, 3, 4}, out[4] = {0};
    int64_t shape[] = {4};
    kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), shape, 1);
    kiln_tensor y = kiln_host_tensor(out, kiln_host_dtype(2, 32), shape, 1);
    kiln_value arguments[2];
    memset(arguments, 0, sizeof arguments);
    arguments[0].kind = arguments[1].kind = KILN_TENSOR;
    arguments[0].as.pointer = &x;
    arguments[1].as.pointer = &y;
    CHECK(it->library->api.call(it->library->api.function_index(name), arguments, 2) == KILN_OK);
    CHECK(out[0] == first && out[3] == 4 * first); /* NOLINT */
}

static void call_outer(const user *it, const char *name, float first)
{
    float in[4] = {1, 2, 3, 4};
    int64_t shape[] = {4};
    kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), shape, 1);
    kiln_value argument, result;
    memset(&argument, 0, sizeof argument);
    argument.kind = KILN_TENSOR;
    argument.as.pointer = &x;
    const int index = it->library->api.function_index(name);
    CHECK(it->library->api.executor_invoke(it->executor->executor, index, &argument, 1, &result) ==
          KILN_OK);
    CHECK(((const float *)it->library->api.tensor_of(&result)->data)[0] == first);
    it->library->api.release(&result);
}

static void call_loop(const user *it)
{
    static float in[ROWS * COLUMNS];
    float out[ROWS * COLUMNS];
    int64_t shape[] = {ROWS, COLUMNS};
    kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), shape, 2);
    kiln_tensor y = kiln_host_tensor(out, kiln_host_dtype(2, 32), shape, 2);
    kiln_value arguments[2];
    memset(arguments, 0, sizeof arguments);
    arguments[0].kind = arguments[1].kind = KILN_TENSOR;
    arguments[0].as.pointer = &x;
    arguments[1].as.pointer = &y;
    CHECK(it->library->api.call(it->library->api.function_index("loop"), arguments, 2) == KILN_OK);
    CHECK(out[0] == 1 && out[ROWS * COLUMNS - 1] == 1); /* NOLINT */
}

static void use(const user *it, int round)
{
    call_graph(it, "plain", 3);  /* workspaces of calls without an executor */
    call_graph(it, "loaded", 2); /* modules */
    call_outer(it, "named", 1);  /* names */
    call_outer(it, "kept", 4);   /* storage sets */
    if (round % 16 == 0)
        call_loop(it); /* the pool */
    add_name(it->library);
}

static void *use_all(void *argument)
{
    for (int i = (int)(intptr_t)argument; !__atomic_load_n(&stop, __ATOMIC_SEQ_CST); i++)
        use(&users[i % count], i);
    return NULL;
}

static void *come_and_go(void *argument)
{
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        user it = open_user(coming);
        use(&it, 0);
        close_user(&it);
    }
    return argument;
}

/* A child has no other thread that could free it: it hangs, or does not. */
static void child(int round)
{
    alarm(20);
    for (int i = 0; i < count; i++)
        use(&users[i], round / 2);
    for (int i = 0; i < count && coming == NULL && round % 2; i++)
        close_user(&users[i]);
    _exit(coming == NULL && round % 2 && !STAYS && live != 0);
}

int main(int argc, char **argv)
{
    const int times = (int)strtol(argv[1], NULL, 10);
    const int first = strcmp(argv[2], "come-and-go") == 0 ? 3 : 2;
    pthread_t thread[3];
    int status, failed = 0;
    if (first == 3)
        coming = argv[--argc];
    for (int i = first; i < argc && count < MOST; i++)
        users[count++] = open_user(argv[i]);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, i == 2 && coming != NULL ? come_and_go : use_all,
                             (void *)(intptr_t)(7 * i)) == 0);
    for (int i = 0; i < times && failed < 3; i++) {
        const pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            child(i);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            printf("child %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        failed += status != 0;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    for (int i = 0; i < count; i++)
        close_user(&users[i]);
    return failed != 0 || (!STAYS && live != 0);
}
