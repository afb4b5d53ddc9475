// As moved.c.
#include "kiln.hpp"

#include <cstdio>
#include <cstring>
#include <unistd.h>

int main(int, char **argv)
{
    const kiln::Library library(argv[1]);
    if (std::strcmp(argv[2], "-") != 0 && chdir(argv[2]) != 0)
        return 1;
    if (std::strcmp(argv[3], "-") != 0 && (unlink(argv[3]) != 0 || symlink(argv[4], argv[3]) != 0))
        return 1;
    const kiln::Executor executor(library);
    const std::vector<float> ones(80, 1.0F);
    const kiln::Tensor x({2, 40}, ones);
    const auto y = executor.run("main", {x});
    std::printf("0 %.4f\n", static_cast<double>(*y[0].values<float>().begin()));
    return 0;
}
