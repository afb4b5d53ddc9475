// As devices.c.
#include "kiln.hpp"

#include <cstdio>
#include <string>

int main(int, char **argv)
{
    try {
        const kiln::Library library(argv[1]);
        const kiln::Executor executor(library);
        executor.set_device(std::stoi(argv[2]), std::stoi(argv[3]));
        const kiln::Tensor x({7}, std::vector<float>(7, 1));
        const auto outputs = executor.run("main", {x});
        for (const float y : outputs[0].values<float>())
            std::printf("%.5f ", static_cast<double>(y));
    } catch (const kiln::Error &error) {
        std::printf("%d %s", error.code(), error.what());
    }
}
