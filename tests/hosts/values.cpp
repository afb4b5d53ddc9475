// As values.c.
#include "failing_new.hpp"
#include "kiln.hpp"

#include <atomic>
#include <cstdio>
#include <thread>

static std::atomic<bool> is_failing;
static int destroyed;

template <class F>
static void print_error(F f)
{
    try {
        f();
        std::puts("0 ");
    } catch (const kiln::Error &error) {
        std::printf("%d %s\n", error.code(), error.what());
    }
}

struct Counted {
    ~Counted() { destroyed++; }
};

static kiln::HostFunction hook()
{
    return [counted = std::make_shared<Counted>()](const std::vector<kiln::Value> &arguments) {
        if (arguments.size() != 1 || is_failing)
            throw std::runtime_error("the host said no");
        return arguments[0];
    };
}

static double number(const kiln::Value &value)
{
    const kiln::Tensor tensor = value.tensor();
    return static_cast<double>(tensor.values<float>()[0]);
}

static void print_result(const kiln::Value &result, const kiln::Value &row)
{
    const std::vector<kiln::Value> items = result.items(), tensors = items.at(2).items();
    const kiln::Tensor::Shape shape = items[1].shape();
    const kiln::Tensor kept = tensors.at(2).tensor();
    const auto values = kept.values<std::int64_t>();
    std::printf("%s [%lld, %lld] %g %g ", items[0].string().c_str(), static_cast<long long>(shape[0]),
                static_cast<long long>(shape[1]), number(tensors[0]), number(tensors[1]));
    std::printf("[%lld, %lld] %lld %lld\n", static_cast<long long>(kept.shape()[0]),
                static_cast<long long>(kept.shape()[1]), static_cast<long long>(values[0]),
                static_cast<long long>(values[1]));
    const kiln::Value again = items.at(3)({row});
    std::printf("%lld of %g\n", static_cast<long long>(again.tensor().shape()[0]), number(again));
    print_error([&] { items[3]({}); });
}

static void run(const std::string &path)
{
    const kiln::Library library(path);
    const kiln::Executor executor(library);
    const kiln::Value row = library.make_tensor(kiln::Tensor({3}, std::vector<float>{1, 0, 2}));
    std::vector<kiln::Value> arguments{row, library.make_string("a string of some length"),
                                       library.make_shape({4, 5}), library.make_function(hook())};
    const auto with = [&](kiln::Value label) {
        return std::vector<kiln::Value>{row, std::move(label), arguments[2], arguments[3]};
    };
    print_error([&] { executor.invoke("main", arguments); });
    library.register_function("hook", hook());
    print_result(executor.invoke("main", arguments), row);

    is_failing = true;
    print_error([&] { executor.invoke("main", arguments); });
    is_failing = false;
    for (const kiln::Value &label : {kiln::Value(3), kiln::Value(0.5), kiln::Value(true), row})
        print_error([&] { executor.invoke("main", with(label)); });
    print_error([&] { executor.invoke("main", {arguments.begin(), arguments.end() - 1}); });

    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < 25; i++)
                executor.invoke("main", arguments);
        });
    for (std::thread &thread : threads)
        thread.join();

    // What C has no form of.
    const kiln::Library other(path);
    kiln::Value tuple = library.make_tuple({1, true, 2.5, row, {}});
    kiln::Value copy = tuple;
    const kiln::Value &same = copy;
    copy = same;
    tuple = kiln::Value();
    const std::vector<kiln::Value> items = copy.items();
    if (!tuple.is_none() || items.at(0).integer() != 1 || !items[1].boolean() ||
        items[2].real() != 2.5 || !items[4].is_none() || items[3].kind() != KILN_TENSOR_OBJECT)
        std::puts("another tuple");
    print_error([&] { static_cast<void>(items[0].string()); });
    print_error([&] { items[0]({}); });
    print_error([&] { static_cast<void>(library.make_tensor(
                          kiln::Tensor::view(static_cast<float *>(nullptr), {2, 2}, {4, 2}))); });
    copy = other.make_tuple({row}); // the same file: the same library in memory
}

// Whatever allocation fails, all values are given back.
static void failures(const std::string &path)
{
    const long count = each_failing([&] {
        const kiln::Library library(path);
        const kiln::Executor executor(library);
        const kiln::Value row = library.make_tensor(kiln::Tensor({3}, std::vector<float>{1, 0, 2}));
        library.register_function("hook", hook());
        const kiln::Value result = executor.invoke(
            "main", {row, library.make_string("a string of some length"), library.make_shape({4, 5}),
                     library.make_function(hook())});
        result.items().at(3)({row});
    });
    if (count < 40)
        std::printf("only %ld allocations failed\n", count);
}

int main(int argc, char **argv)
{
    const kiln::Library library(argv[argc - 1]); // keeps it loaded, to be asked afterwards
    run(argv[argc - 1]);
    std::printf("%lld live, %d gone\n", static_cast<long long>(library.api().live_objects()), destroyed);
    failures(argv[argc - 1]);
    if (library.api().live_objects() != 0)
        std::puts("values are leaked");
}
