// kiln.hpp - runs libraries made by Tensorkiln from C++17. Header-only, over kiln_host.h beside it.
//
//     kiln::Library library("net.so");
//     kiln::Executor executor(library);
//     kiln::Tensor x({1, 784}, images);                  // a copy; Tensor::view() borrows
//     std::vector<kiln::Tensor> y = executor.run("main", {x});
//     for (float value : y[0].values<float>()) ...
//
// Whatever fails throws kiln::Error with a code of kiln.h or kiln_library_file.h and one sentence,
// the same that C, Python and Rust hosts give for the same mistake; without memory, std::bad_alloc.
//
// Library, Executor and Tensor own what they stand for and can be moved, not copied. A library stays
// loaded until it and its executors are gone, in any order. Threads: member functions that are const
// may be called by any number of threads at once on the same object, Executor::run among them (an
// executor is quickest when used by one thread); others need that nobody else uses the object.
#ifndef KILN_HPP
#define KILN_HPP

#include "kiln_host.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kiln {

class Error : public std::runtime_error {
public:
    Error(int code, const std::string &sentence) : std::runtime_error(sentence), code_(code) {}

    // Of enum kiln_code or enum kiln_host_code.
    int code() const noexcept { return code_; }

private:
    int code_;
};

namespace detail {

inline void check(int code, const kiln_host_error &error)
{
    if (code == KILN_ERROR_MEMORY)
        throw std::bad_alloc();
    if (code != KILN_OK)
        throw Error(code, error.sentence);
}

inline const kiln_host_function &find(const kiln_host_library *library, const std::string &name)
{
    kiln_host_error error;
    const kiln_host_function *found = nullptr;
    check(kiln_host_find(library, name.c_str(), &found, &error), error);
    return *found;
}

}  // namespace detail

// Numbers that C++17 has no type for, as their bits.
struct float16 {
    std::uint16_t bits;
};
struct bfloat16 {
    std::uint16_t bits;
};

// An element type: kiln_dtype that can be compared.
struct DType : kiln_dtype {
    constexpr DType(kiln_dtype dtype = {}) noexcept : kiln_dtype(dtype) {}

    friend constexpr bool operator==(DType a, DType b) noexcept
    {
        return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
    }
    friend constexpr bool operator!=(DType a, DType b) noexcept { return !(a == b); }
};

// The element type of a C++ type.
template <class T>
constexpr DType dtype_of() noexcept
{
    using U = std::remove_cv_t<T>;
    static_assert(std::is_arithmetic_v<U> || std::is_same_v<U, float16> || std::is_same_v<U, bfloat16>,
                  "a tensor holds numbers");
    constexpr int code = std::is_same_v<U, bool>        ? 6
                         : std::is_same_v<U, bfloat16>  ? 4
                         : std::is_same_v<U, float16>   ? 2
                         : std::is_floating_point_v<U>  ? 2
                         : std::is_unsigned_v<U>        ? 1
                                                        : 0;
    return kiln_dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * sizeof(U)), 1};
}

// Items that lie one after another; borrowed, valid while their owner is.
template <class T>
class Span {
public:
    Span(T *first, std::size_t count) noexcept : first_(first), count_(count) {}

    T *begin() const noexcept { return first_; }
    T *end() const noexcept { return first_ + count_; }
    T *data() const noexcept { return first_; }
    std::size_t size() const noexcept { return count_; }
    T &operator[](std::size_t i) const noexcept { return first_[i]; }

private:
    T *first_;
    std::size_t count_;
};

// Row-major elements in 64-byte aligned memory of its own, or a view of the caller's memory.
class Tensor {
public:
    using Shape = std::vector<std::int64_t>;

    // Owns zeros.
    Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape))
    {
        const std::size_t bytes = count() * (dtype.bits / 8u) * dtype.lanes;
        memory_.reset(::operator new(bytes == 0 ? 1 : bytes, alignment));
        data_ = std::memset(memory_.get(), 0, bytes);
    }

    // Owns a copy of these elements, whose number must be that of the shape.
    template <class T>
    Tensor(Shape shape, const std::vector<T> &elements) : Tensor(dtype_of<T>(), std::move(shape))
    {
        if (elements.size() != count())
            throw Error(KILN_ERROR_COUNT, "a tensor of " + std::to_string(count()) +
                                              " elements was given " +
                                              std::to_string(elements.size()));
        std::copy(elements.begin(), elements.end(), static_cast<T *>(data_));
    }

    // Borrows memory of the caller's, which must outlive it. Strides count elements; none means
    // row-major without gaps.
    template <class T>
    static Tensor view(T *data, Shape shape, Shape strides = {})
    {
        Tensor made;
        made.dtype_ = dtype_of<T>();
        made.shape_ = std::move(shape);
        made.strides_ = std::move(strides);
        made.data_ = const_cast<std::remove_cv_t<T> *>(data);
        made.is_writable_ = !std::is_const_v<T>;
        made.count();
        if (!made.strides_.empty() && made.strides_.size() != made.shape_.size())
            throw Error(KILN_ERROR_RANK, "a view of " + std::to_string(made.shape_.size()) +
                                             " dimensions was given " +
                                             std::to_string(made.strides_.size()) + " strides");
        return made;
    }

    DType dtype() const noexcept { return dtype_; }
    const Shape &shape() const noexcept { return shape_; }
    bool is_view() const noexcept { return memory_ == nullptr; }

    // Number of elements.
    std::size_t count() const
    {
        std::size_t n = 1;
        for (const std::int64_t size : shape_)
            if (size < 0 || __builtin_mul_overflow(n, static_cast<std::size_t>(size), &n) ||
                n > (~std::size_t{0} >> 5))
                throw Error(KILN_ERROR_SHAPE, "a tensor cannot have that many elements");
        return n;
    }

    // Its elements, without gaps. The type must be the tensor's.
    template <class T>
    Span<T> values()
    {
        check_values<T>();
        if (!is_writable_ && !std::is_const_v<T>)
            throw Error(KILN_ERROR_ARGUMENT, "a view of constant memory cannot be written to");
        return Span<T>(static_cast<T *>(data_), count());
    }
    template <class T>
    Span<const T> values() const
    {
        check_values<T>();
        return Span<const T>(static_cast<const T *>(data_), count());
    }

    // As kiln.h describes it; valid while this tensor is and is not moved from.
    kiln_tensor raw() const noexcept
    {
        kiln_tensor made = kiln_host_tensor(data_, dtype_, const_cast<std::int64_t *>(shape_.data()),
                                            static_cast<int>(shape_.size()));
        made.strides = strides_.empty() ? nullptr : const_cast<std::int64_t *>(strides_.data());
        return made;
    }

    bool is_writable() const noexcept { return is_writable_; }

private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(void *memory) const noexcept { ::operator delete(memory, alignment); }
    };

    Tensor() = default;

    template <class T>
    void check_values() const
    {
        if (dtype_ != dtype_of<T>())
            throw Error(KILN_ERROR_DTYPE, "the tensor holds elements of another type");
        if (!strides_.empty())
            throw Error(KILN_ERROR_ARGUMENT, "a view with strides has no plain row of elements");
    }

    std::unique_ptr<void, Free> memory_;
    void *data_ = nullptr;
    DType dtype_;
    Shape shape_, strides_;
    bool is_writable_ = true;
};

// Tensors for one call, borrowed for its time: executor.run("main", {x, y}).
template <class T>
class Arguments {
public:
    Arguments(std::initializer_list<std::reference_wrapper<T>> tensors)
    {
        for (T &tensor : tensors)
            tensors_.push_back(&tensor);
    }
    template <class Tensors, class = decltype(std::declval<Tensors &>().begin())>
    Arguments(Tensors &&tensors)
    {
        for (T &tensor : tensors)
            tensors_.push_back(&tensor);
    }

    const std::vector<T *> &tensors() const noexcept { return tensors_; }

private:
    std::vector<T *> tensors_;
};

using Inputs = Arguments<const Tensor>;
using Outputs = Arguments<Tensor>;

// What a library says of a function; owned by the library.
using Function = kiln_host_function;
using Param = kiln_host_param;

inline Span<const Param> inputs_of(const Function &f) noexcept
{
    return {f.inputs, static_cast<std::size_t>(f.n_inputs)};
}

inline Span<const Param> outputs_of(const Function &f) noexcept
{
    return {f.outputs, static_cast<std::size_t>(f.n_outputs)};
}

class Library {
public:
    explicit Library(const std::string &path)
    {
        kiln_host_error error;
        kiln_host_library *opened = nullptr;
        detail::check(kiln_host_open(path.c_str(), &opened, &error), error);
        library_.reset(opened, kiln_host_close); // closes it when this throws
    }

    Library(Library &&) noexcept = default;
    Library &operator=(Library &&) noexcept = default;
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    Span<const Function> functions() const noexcept
    {
        return {library_->file.functions, static_cast<std::size_t>(library_->file.n_functions)};
    }

    const Function &function(const std::string &name) const
    {
        return detail::find(library_.get(), name);
    }

    // Calls a tensor function with tensors (KILN_TENSOR: a kiln_tensor) and numbers in its order.
    void call(const std::string &name, const std::vector<kiln_value> &arguments) const
    {
        kiln_host_error error;
        const int count = static_cast<int>(arguments.size());
        const Function &f = function(name);
        detail::check(kiln_host_call(library_.get(), &f, arguments.data(), count, &error), error);
    }

    // Threads that calls into this library may use; 0 is the default.
    void set_num_threads(int threads) const noexcept { api().set_num_threads(threads); }
    int num_threads() const noexcept { return api().get_num_threads(); }

    // Every function of kiln.h; those for values and for loaders are null in a library without.
    const kiln_host_api &api() const noexcept { return library_->api; }

    // Any symbol that the library shows, null when it has none of that name.
    void *address(const std::string &symbol) const noexcept
    {
        return kiln_host_address(library_.get(), symbol.c_str());
    }

private:
    friend class Executor;
    std::shared_ptr<kiln_host_library> library_;
};

// Runs functions of a library; owns the memory for their intermediate results.
class Executor {
public:
    explicit Executor(const Library &library) : library_(library.library_)
    {
        kiln_host_error error;
        kiln_host_executor *made = nullptr;
        detail::check(kiln_host_executor_create(library_.get(), &made, &error), error);
        executor_.reset(made);
    }

    // Runs a graph function; returns new tensors, one for each output.
    std::vector<Tensor> run(const std::string &name, const Inputs &inputs) const
    {
        const Function &f = detail::find(library_.get(), name);
        const std::vector<kiln_tensor> given = raw(inputs.tensors());
        std::vector<Tensor> outputs;
        for (int i = 0; i < f.n_outputs; i++)
            outputs.emplace_back(f.outputs[i].type, output_shape(f, given, i));
        run(f, given, raw(Outputs(outputs).tensors()));
        return outputs;
    }

    // Runs a function into tensors of the caller's. Parameters of a tensor function are the inputs and
    // then the outputs; those that it writes must be among the latter.
    void run(const std::string &name, const Inputs &inputs, const Outputs &outputs) const
    {
        const Function &f = detail::find(library_.get(), name);
        for (std::size_t i = 0; i < outputs.tensors().size(); i++)
            if (!outputs.tensors()[i]->is_writable())
                throw Error(KILN_ERROR_ARGUMENT, name + ": output " + std::to_string(i) +
                                                     " is read-only and cannot be filled");
        run(f, raw(inputs.tensors()), raw(outputs.tensors()));
    }

    // Threads that one call may use, the calling one included; 0 means the library's.
    void set_num_threads(int threads) const noexcept
    {
        library_->api.executor_set_num_threads(executor_->executor, threads);
    }

    // Bytes of intermediate results: the most that a call has needed so far.
    std::int64_t workspace_bytes() const noexcept
    {
        return library_->api.executor_workspace_bytes(executor_->executor);
    }

private:
    struct Destroy {
        void operator()(kiln_host_executor *executor) const noexcept
        {
            kiln_host_executor_destroy(executor);
        }
    };

    template <class T>
    static std::vector<kiln_tensor> raw(const std::vector<T *> &tensors)
    {
        std::vector<kiln_tensor> made;
        made.reserve(tensors.size());
        for (const Tensor *tensor : tensors)
            made.push_back(tensor->raw());
        return made;
    }

    Tensor::Shape output_shape(const Function &f, const std::vector<kiln_tensor> &given, int i) const
    {
        kiln_host_error error;
        std::int64_t sizes[KILN_MAX_RANK];
        int ndim = 0;
        detail::check(kiln_host_output_shape(library_.get(), &f, given.data(),
                                             static_cast<int>(given.size()), i, sizes, &ndim, &error),
                      error);
        return Tensor::Shape(sizes, sizes + ndim);
    }

    void run(const Function &f, const std::vector<kiln_tensor> &inputs,
             const std::vector<kiln_tensor> &outputs) const
    {
        kiln_host_error error;
        for (int i = 0; i < f.n_inputs && i < static_cast<int>(inputs.size()); i++)
            if (std::strstr(f.inputs[i].role, "out") != nullptr)
                throw Error(KILN_ERROR_ARGUMENT, std::string(f.name) + ": argument '" +
                                                     f.inputs[i].name +
                                                     "' is written to: it is an output");
        detail::check(kiln_host_run(executor_.get(), &f, inputs.data(),
                                    static_cast<int>(inputs.size()), outputs.data(),
                                    static_cast<int>(outputs.size()), &error),
                      error);
    }

    std::shared_ptr<kiln_host_library> library_; // outlives the executor: members die in reverse
    std::unique_ptr<kiln_host_executor, Destroy> executor_;
};

}  // namespace kiln
#endif
