// As scalars.c.
#include "kiln.hpp"

#include <cstdio>
#include <iostream>
#include <sstream>

static kiln::Argument number_of(const std::string &word)
{
    const std::string text = word.substr(2);
    if (word[0] == 'i')
        return std::stoll(text);
    if (word[0] == 'u')
        return std::stoull(text);
    if (word[0] == 'b')
        return text != "0";
    const std::uint64_t bits = std::stoull(text, nullptr, 16);
    double real;
    std::memcpy(&real, &bits, sizeof real);
    return real;
}

static void call(const kiln::Library &library, std::istringstream words)
{
    std::int64_t one[] = {1};
    std::uint64_t room[64] = {};
    std::vector<kiln::Tensor> tensors;
    std::vector<kiln::Argument> arguments;
    std::string name, word;
    words >> name;
    while (words >> word) {
        if (word[0] != 't') {
            arguments.push_back(number_of(word));
            continue;
        }
        const kiln_dtype dtype = kiln_host_dtype_named(word.c_str() + 2);
        tensors.push_back(
            kiln::Tensor::view(kiln_host_tensor(&room[tensors.size()], dtype, one, 1), true));
        arguments.emplace_back(tensors.back());
    }
    try {
        library.call(name, arguments);
        std::printf("0");
        for (std::size_t i = 0; i < tensors.size(); i++)
            std::printf(" %016llx", static_cast<unsigned long long>(room[i]));
    } catch (const kiln::Error &error) {
        std::printf("%d %s", error.code(), error.what());
    }
    std::puts("");
}

int main(int argc, char **argv)
{
    const kiln::Library library(argv[argc - 1]);
    for (std::string line; std::getline(std::cin, line);)
        call(library, std::istringstream(line));
}
