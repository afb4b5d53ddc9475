// As streams.c.
#include "kiln.hpp"

#include <cstdio>
#include <string>

int main(int, char **argv)
{
    try {
        const kiln::Library library(argv[1]);
        const kiln::Executor executor(library);
        if (std::stoi(argv[4]) == 1)
            executor.set_graphs(true);
        executor.set_stream(std::stoi(argv[2]), reinterpret_cast<void *>(std::stoul(argv[3])));
        const kiln::Tensor x({7}, std::vector<float>(7, 1));
        executor.run("main", {x});
        const auto outputs = executor.run("main", {x});
        for (const float y : outputs[0].values<float>())
            std::printf("%.5f ", static_cast<double>(y));
        std::printf("%d %d", static_cast<int>(executor.graph_count(KILN_GRAPH_LAUNCHED)),
                    static_cast<int>(executor.graph_count(KILN_GRAPH_MADE)));
    } catch (const kiln::Error &error) {
        std::printf("%d %s", error.code(), error.what());
    }
}
