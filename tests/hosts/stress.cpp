// Lifetimes, ownership, threads and failures of kiln.hpp; prints "done".
#include "failing_new.hpp"
#include "kiln.hpp"

#include <cstdio>
#include <cstdlib>
#include <thread>

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            std::printf("line %d: %s\n", __LINE__, #condition);     \
            std::exit(1);                                           \
        }                                                           \
    } while (0)

template <class F>
static void throws(int code, F f)
{
    try {
        f();
    } catch (const kiln::Error &error) {
        if (error.code() == code)
            return;
        std::printf("code %d: %s\n", error.code(), error.what());
    }
    std::printf("no error %d\n", code);
    std::exit(1);
}

static_assert(!std::is_copy_constructible_v<kiln::Library>);
static_assert(!std::is_copy_constructible_v<kiln::Executor>);
static_assert(!std::is_copy_constructible_v<kiln::Tensor>);
static_assert(std::is_nothrow_move_constructible_v<kiln::Library>);
static_assert(std::is_nothrow_move_constructible_v<kiln::Executor>);
static_assert(std::is_nothrow_move_constructible_v<kiln::Tensor>);
static_assert(std::is_nothrow_move_assignable_v<kiln::Library>);
static_assert(std::is_nothrow_move_assignable_v<kiln::Executor>);
static_assert(std::is_nothrow_move_assignable_v<kiln::Tensor>);
static_assert(std::is_nothrow_move_constructible_v<kiln::Value>);
static_assert(std::is_nothrow_move_assignable_v<kiln::Value>);
static_assert(std::is_nothrow_copy_constructible_v<kiln::Value>);
static_assert(std::is_base_of_v<std::runtime_error, kiln::Error>);

static std::vector<float> row(std::size_t count)
{
    std::vector<float> made(count);
    for (std::size_t i = 0; i < count; i++)
        made[i] = static_cast<float>(i % 7) - 3;
    return made;
}

static std::vector<float> run(const kiln::Executor &executor)
{
    const kiln::Tensor x({33, 8}, row(33 * 8));
    const std::vector<kiln::Tensor> y = executor.run("main", {x});
    CHECK(y.size() == 1 && y[0].shape() == (kiln::Tensor::Shape{33, 4}));
    CHECK(reinterpret_cast<std::uintptr_t>(y[0].values<float>().data()) % 64 == 0);
    return {y[0].values<float>().begin(), y[0].values<float>().end()};
}

static kiln::Executor without_library(const std::string &path)
{
    kiln::Library library(path);
    kiln::Library moved(std::move(library));
    return kiln::Executor(moved); // which lives on without it
}

static void tensors(const kiln::Executor &executor)
{
    std::vector<float> data = row(16), out(8), wide(32);
    const kiln::Tensor x = kiln::Tensor::view(data.data(), {2, 8});
    kiln::Tensor y = kiln::Tensor::view(out.data(), {2, 4});
    CHECK(x.is_view() && x.values<float>().size() == 16);
    executor.run("main", {x}, {y});
    for (std::size_t i = 0; i < 16; i++)
        wide[2 * i] = data[i];
    const std::vector<float> &constant = wide;
    const kiln::Tensor gaps = kiln::Tensor::view(constant.data(), {2, 8}, {16, 2});
    const std::vector<kiln::Tensor> same = executor.run("main", {gaps});
    CHECK(std::equal(out.begin(), out.end(), same[0].values<float>().begin()));

    kiln::Tensor moved(std::move(y));
    CHECK(moved.values<float>().data() == out.data());
    throws(KILN_ERROR_DTYPE, [&] { moved.values<double>(); });
    throws(KILN_ERROR_ARGUMENT, [&] { gaps.values<float>(); });
    throws(KILN_ERROR_RANK, [&] { kiln::Tensor::view(out.data(), {2, 4}, {1}); });
    throws(KILN_ERROR_COUNT, [&] { kiln::Tensor({3, 3}, out); });
    throws(KILN_ERROR_SHAPE, [&] { kiln::Tensor(kiln::dtype_of<float>(), {1ll << 40, 1ll << 40}); });
    throws(KILN_ERROR_SHAPE, [&] { kiln::Tensor(kiln::dtype_of<float>(), {-1}); });
    kiln::Tensor constant_out = kiln::Tensor::view(constant.data(), {2, 4});
    throws(KILN_ERROR_ARGUMENT, [&] { executor.run("main", {x}, {constant_out}); });
    throws(KILN_ERROR_ARGUMENT, [&] { constant_out.values<float>(); });
    const kiln::Tensor one({1}, std::vector<float>{1});
    kiln::Tensor two(kiln::dtype_of<float>(), {1});
    throws(KILN_ERROR_ARGUMENT, [&] { executor.run("add_one", {one, two}); });
    executor.run("add_one", {one}, {two});
    CHECK(two.values<float>()[0] == 2);
    CHECK(kiln::Tensor(kiln::dtype_of<bool>(), {0, 5}).values<bool>().size() == 0);
}

static void numbers(const kiln::Library &library)
{
    kiln::Tensor x({2}, std::vector<float>{1, 2});
    library.call("scale", {x, 3.0, 4});
    CHECK(x.values<float>()[0] == 7 && x.values<float>()[1] == 10);
    throws(KILN_ERROR_COUNT, [&] { library.call("scale", {x}); });
    throws(KILN_ERROR_ARGUMENT, [&] { library.call("scale", {std::as_const(x), 3.0, 4}); });
    CHECK(library.address("kiln_open") != nullptr && library.address("kiln_no") == nullptr);
    library.set_num_threads(3);
    CHECK(library.num_threads() == 3);
    library.set_num_threads(0);
    throws(KILN_ERROR_NAME, [&] { library.make_string("no values here"); });
    throws(KILN_ERROR_NAME, [&] { kiln::Executor(library).invoke("main", {}); });
    throws(KILN_ERROR_NAME, [&] { library.register_loader("none", {}); });
}

// Whatever allocation fails, nothing is leaked and what there is still works.
static long failures(const std::string &path, const std::vector<float> &expected)
{
    return each_failing([&] {
        const kiln::Library library(path);
        const kiln::Executor executor(library);
        const std::vector<float> found = run(executor);
        fail_at = -1;
        CHECK(found == expected);
    });
}

int main(int, char **argv)
{
    const kiln::Executor executor = without_library(argv[1]);
    const std::vector<float> expected = run(executor);
    tensors(executor);
    numbers(kiln::Library(argv[1]));
    throws(KILN_HOST_ERROR_FILE, [] { kiln::Library("/nowhere/net.so"); });
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&] {
            const kiln::Executor own = without_library(argv[1]);
            for (int i = 0; i < 100; i++)
                CHECK(run(i % 2 == 0 ? own : executor) == expected);
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(failures(argv[1], expected) >= 8);
    std::puts("done");
}
