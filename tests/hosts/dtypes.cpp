// As dtypes.c.
#include "kiln.hpp"

#include <cstdio>

template <class T>
static void copy(const kiln::Executor &executor, const char *name)
{
    kiln::Tensor x(kiln::dtype_of<T>(), {5});
    const kiln::Span<T> from = x.values<T>();
    auto *const bytes = reinterpret_cast<unsigned char *>(from.data());
    for (std::size_t b = 0; b < x.bytes(); b++)
        bytes[b] = static_cast<unsigned char>(std::is_same_v<T, bool> ? b % 2 : 37 * b + 1);
    const std::vector<kiln::Tensor> outputs = executor.run(name, {x});
    const kiln::Span<const T> to = outputs[0].values<T>();
    if (to.size() == 5 && std::memcmp(from.data(), to.data(), x.bytes()) == 0)
        std::puts(name);
}

int main(int argc, char **argv)
{
    const kiln::Library library(argv[argc - 1]);
    const kiln::Executor executor(library);
    copy<float>(executor, "float32");
    copy<double>(executor, "float64");
    copy<kiln::float16>(executor, "float16");
    copy<kiln::bfloat16>(executor, "bfloat16");
    copy<std::int8_t>(executor, "int8");
    copy<std::int16_t>(executor, "int16");
    copy<std::int32_t>(executor, "int32");
    copy<std::int64_t>(executor, "int64");
    copy<std::uint8_t>(executor, "uint8");
    copy<std::uint16_t>(executor, "uint16");
    copy<std::uint32_t>(executor, "uint32");
    copy<std::uint64_t>(executor, "uint64");
    copy<bool>(executor, "bool");
    copy<kiln::float8_e4m3fn>(executor, "float8_e4m3fn");
    copy<kiln::float8_e4m3fnuz>(executor, "float8_e4m3fnuz");
    copy<kiln::float8_e5m2>(executor, "float8_e5m2");
    copy<kiln::float8_e5m2fnuz>(executor, "float8_e5m2fnuz");
    copy<kiln::float8_e8m0fnu>(executor, "float8_e8m0fnu");
    copy<std::uint8_t>(executor, "float6_e2m3fn");
    copy<std::uint8_t>(executor, "float6_e3m2fn");
    copy<std::uint8_t>(executor, "float4_e2m1fn");
    copy<std::int8_t>(executor, "int4");
    copy<std::uint8_t>(executor, "uint4");
    copy<std::int8_t>(executor, "int2");
    copy<std::uint8_t>(executor, "uint2");
}
