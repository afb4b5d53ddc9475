// As again.c.
#include "kiln.hpp"

#include <cstdio>
#include <deque>
#include <memory>

int main(int, char **argv)
{
    std::deque<std::unique_ptr<kiln::Library>> all;
    for (int word = std::getchar(); word != EOF; word = std::getchar()) {
        try {
            if (word == 'o')
                all.push_back(std::make_unique<kiln::Library>(argv[1]));
            else
                all.pop_front();
            for (const auto &library : all) {
                const kiln::Tensor x({1, 1}, std::vector<float>{1});
                const auto outputs = kiln::Executor(*library).run("main", {x});
                std::printf("%g ", static_cast<double>(outputs[0].values<float>()[0]));
            }
        } catch (const kiln::Error &error) {
            std::printf("%d %s", error.code(), error.what());
        }
        std::puts("");
        std::fflush(stdout);
    }
}
