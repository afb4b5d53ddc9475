// kiln_tensor.hpp - errors, element types and tensors. Included by kiln.hpp.
#ifndef KILN_TENSOR_HPP
#define KILN_TENSOR_HPP

#include "kiln_host.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kiln {

// A failure. what() is one sentence, e.g. "main: input 'x' must be float32, received int64".
class Error : public std::runtime_error {
public:
    Error(int code, const std::string &sentence) : std::runtime_error(sentence), code_(code) {}

    // A value of enum kiln_code or enum kiln_host_code.
    int code() const noexcept { return code_; }

private:
    int code_;
};

namespace detail {

// Throws for a failure: std::bad_alloc for KILN_ERROR_MEMORY, Error for any other code.
inline void check(int code, const kiln_host_error &error)
{
    if (code == KILN_ERROR_MEMORY)
        throw std::bad_alloc();
    if (code != KILN_OK)
        throw Error(code, error.sentence);
}

}  // namespace detail

// Element types that C++17 lacks, as their bits: IEEE half precision, and the upper half of a
// float.
struct float16 {
    std::uint16_t bits;
};
struct bfloat16 {
    std::uint16_t bits;
};
// Floats of 8 bits, as their bits, by DLPack's code. (Types of fewer bits are bytes: std::uint8_t,
// int4 and int2 std::int8_t.)
template <int Code>
struct float8 {
    std::uint8_t bits;
};
using float8_e4m3fn = float8<10>;
using float8_e4m3fnuz = float8<11>;
using float8_e5m2 = float8<12>;
using float8_e5m2fnuz = float8<13>;
using float8_e8m0fnu = float8<14>;

namespace detail {

template <class T>
constexpr int float8_code = 0;
template <int Code>
constexpr int float8_code<float8<Code>> = Code;

}  // namespace detail

// An element type: a kiln_dtype with == and !=.
struct DType : kiln_dtype {
    constexpr DType(kiln_dtype dtype = {}) noexcept : kiln_dtype(dtype) {}

    friend constexpr bool operator==(DType a, DType b) noexcept
    {
        return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
    }
    friend constexpr bool operator!=(DType a, DType b) noexcept { return !(a == b); }
};

// The element type of a C++ type: dtype_of<float>() is float32.
template <class T>
constexpr DType dtype_of() noexcept
{
    using U = std::remove_cv_t<T>;
    static_assert(std::is_arithmetic_v<U> || std::is_same_v<U, float16> ||
                      std::is_same_v<U, bfloat16> || detail::float8_code<U> != 0,
                  "a tensor holds numbers");
    constexpr int code = std::is_same_v<U, bool>        ? 6
                         : detail::float8_code<U> != 0  ? detail::float8_code<U>
                         : std::is_same_v<U, bfloat16>  ? 4
                         : std::is_same_v<U, float16>   ? 2
                         : std::is_floating_point_v<U>  ? 2
                         : std::is_unsigned_v<U>        ? 1
                                                        : 0;
    return kiln_dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * sizeof(U)), 1};
}

// A contiguous range of items; a view, valid while their owner is. As std::span, which C++17 lacks.
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

// A tensor in CPU memory: either it owns contiguous row-major elements in 64-byte aligned memory,
// or it is a view of the caller's memory. Moved, not copied. A shape with a negative size, or more
// elements than any memory holds, throws KILN_ERROR_SHAPE.
class Tensor {
public:
    using Shape = std::vector<std::int64_t>;

    // A tensor of zeros.
    Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape))
    {
        const std::size_t size = bytes();
        memory_.reset(::operator new(size == 0 ? 1 : size, alignment));
        data_ = std::memset(memory_.get(), 0, size);
    }

    // A tensor with a copy of these elements; KILN_ERROR_COUNT unless their number is the shape's.
    template <class T>
    Tensor(Shape shape, const std::vector<T> &elements) : Tensor(dtype_of<T>(), std::move(shape))
    {
        if (elements.size() != count())
            throw Error(KILN_ERROR_COUNT, "a tensor of " + std::to_string(count()) +
                                              " elements was given " +
                                              std::to_string(elements.size()));
        std::copy(elements.begin(), elements.end(), static_cast<T *>(data_));
    }

    // A view of the caller's memory, which must outlive it; read-only if T is const. Strides count
    // elements; without any the elements are contiguous and row-major. KILN_ERROR_RANK unless there
    // is a stride for each dimension.
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

    // A view of a tensor of kiln.h, whose memory must outlive it; its shape is copied.
    // KILN_ERROR_DEVICE if it is not in CPU memory, KILN_ERROR_RANK beyond KILN_MAX_RANK.
    static Tensor view(const kiln_tensor &raw, bool is_writable)
    {
        Tensor made;
        if (raw.device_type != 1)
            throw Error(KILN_ERROR_DEVICE, "a view must be in CPU memory (device type 1), received "
                                           "device type " + std::to_string(raw.device_type));
        if (raw.ndim < 0 || raw.ndim > KILN_MAX_RANK)
            throw Error(KILN_ERROR_RANK, "a view has at most " + std::to_string(KILN_MAX_RANK) +
                                             " dimensions, received " + std::to_string(raw.ndim));
        made.dtype_ = raw.dtype;
        made.shape_.assign(raw.shape, raw.shape + raw.ndim);
        if (!kiln_host_is_packed(&raw))
            made.strides_.assign(raw.strides, raw.strides + raw.ndim);
        made.data_ = raw.data == nullptr ? nullptr : static_cast<char *>(raw.data) + raw.byte_offset;
        made.is_writable_ = is_writable;
        made.count();
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

    // The bytes of all elements; KILN_ERROR_ARGUMENT for a view with strides.
    std::size_t bytes() const
    {
        check_packed();
        return count() * (dtype_.bits / 8u) * dtype_.lanes;
    }

    // The elements in row-major order, valid while their memory is. KILN_ERROR_DTYPE unless T is
    // the tensor's element type; KILN_ERROR_ARGUMENT for a view with strides, and for elements that
    // are not const in a read-only view.
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

    // The tensor as kiln.h describes it, without ownership: valid until this tensor is destroyed,
    // moved from or assigned to.
    kiln_tensor raw() const noexcept
    {
        kiln_tensor made = kiln_host_tensor(data_, dtype_, const_cast<std::int64_t *>(shape_.data()),
                                            static_cast<int>(shape_.size()));
        made.strides = strides_.empty() ? nullptr : const_cast<std::int64_t *>(strides_.data());
        return made;
    }

    // False for a view of const memory.
    bool is_writable() const noexcept { return is_writable_; }

private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(void *memory) const noexcept { ::operator delete(memory, alignment); }
    };

    Tensor() = default;

    void check_packed() const
    {
        if (!strides_.empty())
            throw Error(KILN_ERROR_ARGUMENT,
                        "the elements of a view with strides are not contiguous");
    }

    template <class T>
    void check_values() const
    {
        if (dtype_ != dtype_of<T>())
            throw Error(KILN_ERROR_DTYPE, "the tensor holds elements of another type");
        check_packed();
    }

    std::unique_ptr<void, Free> memory_;
    void *data_ = nullptr;
    DType dtype_;
    Shape shape_, strides_;
    bool is_writable_ = true;
};

}  // namespace kiln
#endif
