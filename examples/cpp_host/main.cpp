// Runs a function of any compiled model from C++ with kiln.hpp, without Python.
//
//   kiln compile mlp.onnx -o mlp.so --headers include
//   g++ -std=c++17 -Iinclude -o cpp_host main.cpp -ldl
//   ./cpp_host ./mlp.so main batch=4
//
// Prints the same as ../c_host/any_model.c: each input is filled with 0 to 6, repeated (in steps of
// 0.25 for floating point), and for each output it prints the shape and the sum of the elements.
// Symbolic sizes such as `batch` are 1 unless the command line gives a number.
#include "kiln.hpp"

#include <cstdio>
#include <map>

using Sizes = std::map<std::string, std::int64_t>;

// Calls f(T{}), where T is the C++ type of the elements.
template <class F>
static void with_type(kiln::DType dtype, F f)
{
    if (dtype == kiln::dtype_of<float>()) f(float{});
    else if (dtype == kiln::dtype_of<double>()) f(double{});
    else if (dtype == kiln::dtype_of<std::int8_t>()) f(std::int8_t{});
    else if (dtype == kiln::dtype_of<std::int32_t>()) f(std::int32_t{});
    else if (dtype == kiln::dtype_of<std::int64_t>()) f(std::int64_t{});
    else if (dtype == kiln::dtype_of<std::uint8_t>()) f(std::uint8_t{});
    else if (dtype == kiln::dtype_of<bool>()) f(bool{});
    else throw std::runtime_error("this example knows no such element type");
}

static kiln::Tensor make_input(const kiln::Param &param, const Sizes &sizes)
{
    kiln::Tensor::Shape shape;
    for (int d = 0; d < param.ndim; d++) {
        const auto given = sizes.find(param.dims[d].text);
        const bool is_open = param.dims[d].size < 0;
        shape.push_back(!is_open ? param.dims[d].size : given == sizes.end() ? 1 : given->second);
    }
    kiln::Tensor made(param.type, shape);
    with_type(param.type, [&](auto zero) {
        using T = decltype(zero);
        const double step = std::is_floating_point_v<T> ? 0.25 : 1;
        std::size_t i = 0;
        for (T &value : made.values<T>())
            value = static_cast<T>(static_cast<double>(i++ % 7) * step);
    });
    return made;
}

static void print_output(const kiln::Param &param, const kiln::Tensor &tensor)
{
    double sum = 0;
    with_type(tensor.dtype(), [&](auto zero) {
        for (const auto value : tensor.values<decltype(zero)>())
            sum += static_cast<double>(value);
    });
    std::printf("%s: %s [", param.name, param.dtype);
    for (std::size_t d = 0; d < tensor.shape().size(); d++)
        std::printf(d == 0 ? "%lld" : ", %lld", static_cast<long long>(tensor.shape()[d]));
    std::printf("] sum %.5f\n", sum);
}

static void list(const kiln::Library &library)
{
    char text[256];
    for (const kiln::Function &f : library.functions()) {
        std::printf("%s function %s\n", f.kind, f.name);
        for (const auto &params : {kiln::inputs_of(f), kiln::outputs_of(f)})
            for (const kiln::Param &param : params) {
                kiln_host_show(&param, text, sizeof text);
                std::printf("  %s %s\n", param.role, text);
            }
    }
}

static void run(const kiln::Library &library, const std::string &name, const Sizes &sizes)
{
    const kiln::Function &f = library.function(name);
    const kiln::Executor executor(library);
    std::vector<kiln::Tensor> inputs;
    for (const kiln::Param &param : kiln::inputs_of(f))
        inputs.push_back(make_input(param, sizes));
    const std::vector<kiln::Tensor> outputs = executor.run(name, inputs);
    for (std::size_t i = 0; i < outputs.size(); i++)
        print_output(f.outputs[i], outputs[i]);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return std::fprintf(stderr, "usage: cpp_host LIBRARY [FUNCTION [SIZE=NUMBER ...]]\n"), 2;
    try {
        const kiln::Library library(argv[1]);
        Sizes sizes;
        for (int i = 3; i < argc; i++) {
            const std::string word = argv[i];
            sizes[word.substr(0, word.find('='))] = std::stoll(word.substr(word.find('=') + 1));
        }
        if (argc == 2)
            list(library);
        else
            run(library, argv[2], sizes);
        return 0;
    } catch (const kiln::Error &error) {
        std::fprintf(stderr, "error %d: %s\n", error.code(), error.what());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
}
