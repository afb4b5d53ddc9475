// kiln_value.hpp - values, functions of the host, and loaders. Included by kiln.hpp.
#ifndef KILN_VALUE_HPP
#define KILN_VALUE_HPP

#include "kiln_tensor.hpp"

#include <functional>
#include <mutex>

namespace kiln {

// An artifact that a library carries; its strings and content live as long as the library.
using Artifact = kiln_artifact;

// What a loader makes of artifacts: functions, for example of a device. Destroyed when the library
// is unloaded.
class Module {
public:
    virtual ~Module() = default;

    // Runs a function. `tensors` are its tensor parameters in order, outputs last, as views that
    // are valid during the call; `sizes` are its integer parameters. If the module has no function
    // of that name, throw an Error with KILN_ERROR_NAME: the modules that this one imports are then
    // tried. Called by several threads at once.
    virtual void call(const std::string &function, Span<Tensor> tensors,
                      Span<const std::int64_t> sizes) = 0;
};

// Makes a module of all artifacts for this loader and one target key; must not return null. Runs
// under a lock of the library, so never twice at once.
using Loader = std::function<std::unique_ptr<Module>(const std::string &target_key,
                                                     Span<const Artifact> artifacts)>;

namespace detail {

// Runs f(); converts an exception to a code, and its text to the library's last error.
template <class F>
int guarded(void (*set_last_error)(const char *), F f) noexcept
{
    try {
        f();
        return KILN_OK;
    } catch (const Error &error) {
        set_last_error(error.what());
        return error.code() == KILN_OK ? static_cast<int>(KILN_ERROR_CALLBACK) : error.code();
    } catch (const std::exception &error) {
        set_last_error(error.what());
    } catch (...) { // no text: the library has set "... failed without a message"
    }
    return KILN_ERROR_CALLBACK;
}

struct LoadedModule {
    void (*set_last_error)(const char *);
    std::unique_ptr<Module> module;
};

struct RegisteredLoader {
    std::string name;
    Loader loader;
    void (*set_last_error)(const char *);

    static int load(void *context, const char *target_key, const kiln_artifact *artifacts, int count,
                    void **module) noexcept
    {
        const auto &self = *static_cast<const RegisteredLoader *>(context);
        return guarded(self.set_last_error, [&] {
            const Span<const Artifact> all(artifacts, static_cast<std::size_t>(count));
            auto made = std::make_unique<LoadedModule>(
                LoadedModule{self.set_last_error, self.loader(target_key, all)});
            if (made->module == nullptr)
                throw Error(KILN_ERROR_CALLBACK, "loader '" + self.name + "' returned no module");
            *module = made.release();
        });
    }

    static int call(void *module, const char *function, const kiln_value *arguments,
                    std::int32_t count, kiln_value *result) noexcept
    {
        const auto &self = *static_cast<const LoadedModule *>(module);
        *result = kiln_host_value(KILN_NONE);
        return guarded(self.set_last_error, [&] {
            std::vector<Tensor> tensors;
            std::vector<std::int64_t> sizes;
            for (std::int32_t i = 0; i < count; i++)
                if (arguments[i].kind == KILN_TENSOR)
                    tensors.push_back(
                        Tensor::view(*static_cast<const kiln_tensor *>(arguments[i].as.pointer), true));
                else if (arguments[i].kind == KILN_INT)
                    sizes.push_back(arguments[i].as.integer);
                else
                    throw Error(KILN_ERROR_ARGUMENT, std::string(function) + ": argument " +
                                                         std::to_string(i) +
                                                         " is neither a tensor nor an integer");
            self.module->call(function, {tensors.data(), tensors.size()}, {sizes.data(), sizes.size()});
        });
    }

    static void unload(void *module) noexcept { delete static_cast<LoadedModule *>(module); }
};

// An open library and what was registered in it. Functions and loaders are removed on closing,
// because the code may stay loaded, if the program has opened the file twice.
struct Opened {
    kiln_host_library *library;
    std::mutex mutex;
    std::vector<std::unique_ptr<RegisteredLoader>> loaders;
    std::vector<std::string> functions;

    explicit Opened(const std::string &path)
    {
        kiln_host_error error;
        check(kiln_host_open(path.c_str(), &library, &error), error);
    }
    Opened(const Opened &) = delete;
    Opened &operator=(const Opened &) = delete;
    ~Opened()
    {
        for (const std::string &name : functions)
            library->api.register_function(name.c_str(), nullptr);
        for (const auto &loader : loaders)
            library->api.register_loader(loader->name.c_str(), nullptr);
        kiln_host_close(library);
    }

    const kiln_host_api &api() const noexcept { return library->api; }

    // The mutex is not held during calls of the library, which has its own locks.
    template <class Kept>
    void keep(std::vector<Kept> &all, Kept one)
    {
        const std::lock_guard<std::mutex> lock(mutex);
        all.push_back(std::move(one));
    }

    void report(int code) const
    {
        kiln_host_error error;
        check(kiln_host_report(library, code, &error), error);
    }
};

using Handle = std::shared_ptr<Opened>;

template <class T>
kiln_value number(T number) noexcept
{
    if constexpr (std::is_same_v<T, bool>)
        return kiln_host_bool(number);
    else if constexpr (std::is_floating_point_v<T>)
        return kiln_host_float(static_cast<double>(number));
    else if constexpr (std::is_unsigned_v<T>)
        return kiln_host_uint(number);
    else
        return kiln_host_int(number);
}

struct Callback;

}  // namespace detail

// An argument or result of an outer function: nothing, a number, a string, a shape, a tensor, a
// tuple or a function. Numbers convert implicitly; Library::make_... makes the others, which are
// reference-counted: copies share the object, and keep its library loaded.
class Value {
public:
    Value() noexcept : value_(kiln_host_value(KILN_NONE)) {}

    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Value(T number) noexcept : value_(detail::number(number))
    {
    }

    Value(const Value &other) noexcept : library_(other.library_), value_(other.value_)
    {
        if (library_ != nullptr)
            library_->api().retain(&value_);
    }
    Value(Value &&other) noexcept
        : library_(std::move(other.library_)),
          value_(std::exchange(other.value_, kiln_host_value(KILN_NONE)))
    {
    }
    Value &operator=(Value other) noexcept
    {
        std::swap(library_, other.library_);
        std::swap(value_, other.value_);
        return *this;
    }
    ~Value()
    {
        if (library_ != nullptr)
            library_->api().release(&value_);
    }

    // A value of enum kiln_kind.
    int kind() const noexcept { return value_.kind; }
    bool is_none() const noexcept { return value_.kind == KILN_NONE; }

    // The content, copied; KILN_ERROR_ARGUMENT if the value is of another kind. Nothing is
    // converted: real() of an integer throws, and so does integer() from 2^63 on.
    std::int64_t integer() const
    {
        need(value_.kind == KILN_INT, "an integer");
        return value_.as.integer;
    }
    bool boolean() const
    {
        need(value_.kind == KILN_BOOL, "a bool");
        return value_.as.integer != 0;
    }
    double real() const
    {
        need(value_.kind == KILN_FLOAT, "a number with a fraction");
        return value_.as.real;
    }
    std::string string() const
    {
        std::int64_t bytes = 0;
        const char *const text =
            library_ == nullptr ? nullptr : library_->api().string_of(&value_, &bytes);
        need(text != nullptr, "a string");
        return std::string(text, static_cast<std::size_t>(bytes));
    }
    Tensor::Shape shape() const
    {
        int count = 0;
        const std::int64_t *const sizes =
            library_ == nullptr ? nullptr : library_->api().shape_of(&value_, &count);
        need(sizes != nullptr, "a shape");
        return Tensor::Shape(sizes, sizes + count);
    }
    // A read-only view, valid while this value or a copy of it exists. KILN_ERROR_ARGUMENT if the
    // value is not a tensor.
    Tensor tensor() const
    {
        const kiln_tensor *const found =
            library_ == nullptr ? nullptr : library_->api().tensor_of(&value_);
        need(found != nullptr, "a tensor");
        return Tensor::view(*found, false);
    }
    // The items of a tuple, sharing their objects.
    std::vector<Value> items() const
    {
        int count = 0;
        const kiln_value *const found =
            library_ == nullptr ? nullptr : library_->api().items_of(&value_, &count);
        need(found != nullptr, "a tuple");
        std::vector<Value> made;
        for (int i = 0; i < count; i++)
            made.push_back(copy(library_, found[i]));
        return made;
    }

    // Calls a function value, as kiln_call_value(). Arguments must be numbers or values of the same
    // library: KILN_ERROR_ARGUMENT.
    Value operator()(const std::vector<Value> &arguments) const
    {
        need(value_.kind == KILN_FUNCTION, "a function");
        const std::vector<kiln_value> given = raw(library_, arguments);
        kiln_value result;
        library_->report(library_->api().call_value(&value_, given.data(),
                                                    static_cast<int>(given.size()), &result));
        return own(library_, result);
    }

private:
    friend class Library;
    friend class Executor;
    friend struct detail::Callback;

    void need(bool is, const char *what) const
    {
        if (!is)
            throw Error(KILN_ERROR_ARGUMENT, std::string("the value is not ") + what);
    }

    // A value that takes over the caller's reference.
    static Value own(const detail::Handle &library, kiln_value value) noexcept
    {
        Value made;
        made.library_ = library;
        made.value_ = value;
        return made;
    }

    // A value with a reference of its own. KILN_ERROR_ARGUMENT for a view, which would dangle.
    static Value copy(const detail::Handle &library, const kiln_value &value)
    {
        if (value.kind >= KILN_TENSOR && value.kind < KILN_SMALL_STRING)
            throw Error(KILN_ERROR_ARGUMENT, "a value that is only lent cannot be kept");
        library->api().retain(&value);
        return own(library, value);
    }

    // The values as kiln.h describes them, without references of their own. Objects must be of this
    // library: it could store one of another library, which may be unloaded first.
    static std::vector<kiln_value> raw(const detail::Handle &library, const std::vector<Value> &values)
    {
        std::vector<kiln_value> made;
        for (const Value &value : values) {
            if (value.value_.kind >= KILN_STRING &&
                value.library_->library->handle != library->library->handle)
                throw Error(KILN_ERROR_ARGUMENT, "argument " + std::to_string(made.size()) +
                                                     " is a value of another library");
            made.push_back(value.value_);
        }
        return made;
    }

    detail::Handle library_; // null for a number from the host, and for nothing
    kiln_value value_;
};

// A function of the host. Called by any thread, and by several at once; an exception becomes the
// error KILN_ERROR_CALLBACK of the caller, with its text.
using HostFunction = std::function<Value(const std::vector<Value> &arguments)>;

namespace detail {

struct Callback {
    std::weak_ptr<Opened> library; // weak, because the library may own this object
    HostFunction function;

    static int call(void *context, const kiln_value *arguments, std::int32_t count,
                    kiln_value *result) noexcept
    {
        const auto &self = *static_cast<const Callback *>(context);
        const Handle library = self.library.lock();
        if (library == nullptr)
            return KILN_ERROR_CALLBACK; // being closed; the library has set a sentence
        return guarded(library->api().set_last_error, [&] {
            std::vector<Value> given;
            for (std::int32_t i = 0; i < count; i++)
                given.push_back(Value::copy(library, arguments[i]));
            std::vector<Value> made(1);
            made[0] = self.function(given);
            *result = Value::raw(library, made)[0];
            made[0].value_ = kiln_host_value(KILN_NONE); // the caller owns the reference now
        });
    }

    static void destroy(void *context) noexcept { delete static_cast<Callback *>(context); }
};

}  // namespace detail

// An argument of a tensor function: a number, or a tensor, which must live until the call returns
// and not be moved. Converts implicitly.
class Argument {
public:
    Argument(Tensor &tensor) noexcept
        : tensor_(tensor.raw()), is_tensor_(true), is_read_only_(!tensor.is_writable())
    {
    }
    Argument(const Tensor &tensor) noexcept
        : tensor_(tensor.raw()), is_tensor_(true), is_read_only_(true)
    {
    }
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Argument(T number) noexcept : number_(detail::number(number))
    {
    }

    // The argument as kiln.h describes it; valid while this object exists.
    kiln_value raw() const noexcept { return is_tensor_ ? kiln_host_lend(&tensor_) : number_; }
    bool is_read_only() const noexcept { return is_read_only_; }

private:
    kiln_tensor tensor_{};
    kiln_value number_{};
    bool is_tensor_ = false, is_read_only_ = false;
};

}  // namespace kiln
#endif
