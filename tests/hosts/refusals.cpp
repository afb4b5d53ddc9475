// As refusals.c; there is no tensor of another device to be made here.
#include "kiln.hpp"

#include <cstdio>
#include <sstream>

static double memory[4096];

static kiln::Tensor tensor_of(const std::string &text)
{
    std::istringstream words(text);
    std::string role, dtype, sizes, how, size;
    std::getline(words, role, ':');
    std::getline(words, dtype, ':');
    std::getline(words, sizes, ':');
    std::getline(words, how, ':');
    kiln::Tensor::Shape shape, strides;
    for (std::istringstream rest(sizes); std::getline(rest, size, 'x');)
        shape.push_back(std::stoll(size));
    std::int64_t step = 2;
    for (std::size_t d = shape.size(); d-- > 0; step *= shape[d])
        strides.insert(strides.begin(), step);
    kiln_tensor raw = kiln_host_tensor(memory, kiln_host_dtype_named(dtype.c_str()), shape.data(),
                                       static_cast<int>(shape.size()));
    if (how == "null")
        raw.data = nullptr;
    if (how == "odd")
        raw.byte_offset = 1;
    if (how == "ones")
        std::memset(memory, 1, sizeof memory);
    if (how == "gaps")
        raw.strides = strides.data();
    return kiln::Tensor::view(raw, role == "out");
}

static kiln::Argument number_of(const std::string &text)
{
    const std::string number = text.substr(text.rfind(':') + 1);
    if (text[2] == 'i')
        return std::stoll(number);
    if (text[2] == 'b')
        return number != "0";
    return std::stod(number);
}

static void run(const kiln::Library &library, const std::string &name,
                const std::vector<std::string> &words)
{
    std::vector<kiln::Tensor> inputs, outputs, tensors;
    std::vector<kiln::Argument> arguments;
    tensors.reserve(words.size());
    bool has_number = false;
    for (const std::string &word : words) {
        has_number |= word[0] == 'v';
        if (word[0] == 'v') {
            arguments.push_back(number_of(word));
            continue;
        }
        (word[0] == 'i' ? inputs : outputs).push_back(tensor_of(word));
        tensors.push_back(tensor_of(word));
        arguments.emplace_back(tensors.back());
    }
    if (name == "@loader")
        library.register_loader("none", {});
    else if (name == "@invoke")
        kiln::Executor(library).invoke("main", {});
    else if (has_number)
        library.call(name, arguments);
    else
        kiln::Executor(library).run(name, inputs, outputs);
}

int main(int argc, char **argv)
{
    try {
        const kiln::Library library(argv[1]);
        if (argc > 2)
            run(library, argv[2], {argv + 3, argv + argc});
        std::printf("0\n\n");
    } catch (const kiln::Error &error) {
        std::printf("%d\n%s\n", error.code(), error.what());
    }
    return 0;
}
