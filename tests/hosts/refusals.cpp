// As refusals.c.
#include "kiln.hpp"

#include <cstdio>
#include <sstream>

static double memory[4096];

template <class T>
static kiln::Tensor typed(const std::string &name, bool is_null, const kiln::Tensor::Shape &shape)
{
    if (kiln::dtype_of<T>() != kiln::DType(kiln_host_dtype_named(name.c_str())))
        throw std::runtime_error("another type");
    return kiln::Tensor::view(is_null ? nullptr : reinterpret_cast<T *>(memory), shape);
}

static kiln::Tensor tensor_of(const std::string &text)
{
    std::istringstream words(text);
    std::string role, dtype, sizes, null, size;
    std::getline(words, role, ':');
    std::getline(words, dtype, ':');
    std::getline(words, sizes, ':');
    std::getline(words, null, ':');
    kiln::Tensor::Shape shape;
    for (std::istringstream rest(sizes); std::getline(rest, size, 'x');)
        shape.push_back(std::stoll(size));
    if (dtype == "float64")
        return typed<double>(dtype, !null.empty(), shape);
    if (dtype == "uint8")
        return typed<unsigned char>(dtype, !null.empty(), shape);
    if (dtype == "bool")
        return typed<bool>(dtype, !null.empty(), shape);
    return typed<float>(dtype, !null.empty(), shape);
}

int main(int argc, char **argv)
{
    try {
        const kiln::Library library(argv[1]);
        if (argc > 2) {
            const kiln::Executor executor(library);
            std::vector<kiln::Tensor> inputs, outputs;
            for (int i = 3; i < argc; i++)
                (argv[i][0] == 'i' ? inputs : outputs).push_back(tensor_of(argv[i]));
            executor.run(argv[2], inputs, outputs);
        }
        std::printf("0\n\n");
    } catch (const kiln::Error &error) {
        std::printf("%d\n%s\n", error.code(), error.what());
    }
    return 0;
}
