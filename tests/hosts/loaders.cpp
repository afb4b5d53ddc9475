// As loaders.c.
#include "kiln.hpp"

#include <cstdio>
#include <sstream>

static int live;
static bool is_failing;

class Device : public kiln::Module {
public:
    explicit Device(const kiln::Artifact &stream)
    {
        std::istringstream words(
            std::string(static_cast<const char *>(stream.content), static_cast<std::size_t>(stream.bytes)));
        words >> command_ >> number_;
        live++;
    }
    ~Device() override { live--; }

    void call(const std::string &function, kiln::Span<kiln::Tensor> tensors,
              kiln::Span<const std::int64_t>) override
    {
        if (function != "streamer_mul")
            throw kiln::Error(KILN_ERROR_NAME, "no function '" + function + "'");
        if (is_failing)
            throw std::runtime_error("the device has stopped");
        const auto x = std::as_const(tensors[0]).values<float>();
        std::transform(x.begin(), x.end(), tensors[1].values<float>().begin(),
                       [this](float value) { return value * number_; });
    }

private:
    std::string command_;
    float number_ = 0;
};

static std::unique_ptr<kiln::Module> load(const std::string &, kiln::Span<const kiln::Artifact> artifacts)
{
    if (is_failing)
        throw std::runtime_error("the device is on fire");
    return std::make_unique<Device>(artifacts[0]);
}

static void run(const kiln::Executor &executor)
{
    std::vector<float> row;
    for (int i = 0; i < 12; i++)
        row.push_back(static_cast<float>(i) / 4 - 1);
    try {
        const auto outputs = executor.run("main", {kiln::Tensor({3, 4}, row)});
        for (const float value : outputs[0].values<float>())
            std::printf("%.6f ", static_cast<double>(value));
        std::puts("");
    } catch (const kiln::Error &error) {
        std::printf("%d %s\n", error.code(), error.what());
    }
}

static void lives(const std::string &path)
{
    const kiln::Library library(path);
    const kiln::Executor executor(library);
    run(executor);
    library.register_loader("stream", load);
    is_failing = true;
    run(executor);
    is_failing = false;
    run(executor);
    is_failing = true;
    run(executor);
}

int main(int argc, char **argv)
{
    lives(argv[argc - 1]);
    std::printf("%d live\n", live);
}
