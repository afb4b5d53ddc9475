// The same as main.c, in C++.
//
//   g++ -std=c++17 -Iinclude -o static_cpp main.cpp mlp.a -lpthread -ldl -lm
#include "mlp.h"

#include <cstdio>
#include <vector>

int main()
{
    constexpr std::size_t rows = 2, inputs = 784, outputs = 10;
    std::vector<float> image(rows * inputs), logits(rows * outputs);
    for (std::size_t i = 0; i < image.size(); i++)
        image[i] = static_cast<float>(i % 7) / 4;
    mlp_set_num_threads(1); // no thread is ever created
    if (mlp_main(rows, image.data(), logits.data()) != 0)
        return std::fprintf(stderr, "%s\n", mlp_last_error()), 1;
    for (const float value : logits)
        std::printf("%.5f ", static_cast<double>(value));
    const int code = mlp_main(-1, image.data(), logits.data()); // rows: an error, as an example
    std::printf("\nerror %d: %s\n", code, mlp_last_error());
}
