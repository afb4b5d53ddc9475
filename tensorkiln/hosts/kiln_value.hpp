// kiln_value.hpp - values, functions of the host, and loaders. A part of kiln.hpp, which includes it.
#ifndef KILN_VALUE_HPP
#define KILN_VALUE_HPP

#include "kiln_tensor.hpp"

#include <functional>
#include <mutex>

namespace kiln {

// An artifact that a library carries; it lives as long as the library.
using Artifact = kiln_artifact;

// What a loader makes of artifacts: functions of a device. Gone when the library is unloaded.
class Module {
public:
    virtual ~Module() = default;

    // Runs a function: tensors in the order of its parameters, those it fills last; sizes that it
    // takes as numbers. Throws an Error of code KILN_ERROR_NAME when it has none of that name: then
    // the modules that this one imports are asked. Several threads may call at once.
    virtual void call(const std::string &function, Span<Tensor> tensors,
                      Span<const std::int64_t> sizes) = 0;
};

// Makes a module of all artifacts that name it, for one target key. Runs under a lock of the library.
using Loader = std::function<std::unique_ptr<Module>(const std::string &target_key,
                                                     Span<const Artifact> artifacts)>;

namespace detail {

// Runs f(); what it throws becomes a code, and the sentence of the library's last error.
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
    } catch (...) { // the library says that nobody said why
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

// An open library with what was registered in it. Its functions and loaders are taken away when it
// is closed, for the system may keep the library for others.
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

    // Not locked while the library is called, which has locks of its own.
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

// What outer functions take and give: nothing, a number, a string, a shape, a tensor, a tuple or a
// function. Objects are shared by copies and keep their library loaded; Library::make_... makes them.
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

    // Of enum kiln_kind.
    int kind() const noexcept { return value_.kind; }
    bool is_none() const noexcept { return value_.kind == KILN_NONE; }

    // What is in it; an Error when that is something else.
    std::int64_t integer() const
    {
        need(value_.kind == KILN_INT, "integer");
        return value_.as.integer;
    }
    bool boolean() const
    {
        need(value_.kind == KILN_BOOL, "bool");
        return value_.as.integer != 0;
    }
    double real() const
    {
        need(value_.kind == KILN_FLOAT, "number with a fraction");
        return value_.as.real;
    }
    std::string string() const
    {
        std::int64_t bytes = 0;
        const char *const text =
            library_ == nullptr ? nullptr : library_->api().string_of(&value_, &bytes);
        need(text != nullptr, "string");
        return std::string(text, static_cast<std::size_t>(bytes));
    }
    Tensor::Shape shape() const
    {
        int count = 0;
        const std::int64_t *const sizes =
            library_ == nullptr ? nullptr : library_->api().shape_of(&value_, &count);
        need(sizes != nullptr, "shape");
        return Tensor::Shape(sizes, sizes + count);
    }
    // A view that is only read, valid while this value or a copy is.
    Tensor tensor() const
    {
        const kiln_tensor *const found =
            library_ == nullptr ? nullptr : library_->api().tensor_of(&value_);
        need(found != nullptr, "tensor");
        return Tensor::view(*found, false);
    }
    std::vector<Value> items() const
    {
        int count = 0;
        const kiln_value *const found =
            library_ == nullptr ? nullptr : library_->api().items_of(&value_, &count);
        need(found != nullptr, "tuple");
        std::vector<Value> made;
        for (int i = 0; i < count; i++)
            made.push_back(copy(library_, found[i]));
        return made;
    }

    // Calls a function.
    Value operator()(const std::vector<Value> &arguments) const
    {
        need(value_.kind == KILN_FUNCTION, "function");
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
            throw Error(KILN_ERROR_ARGUMENT, std::string("the value is no ") + what);
    }

    // Takes over a reference.
    static Value own(const detail::Handle &library, kiln_value value) noexcept
    {
        Value made;
        made.library_ = library;
        made.value_ = value;
        return made;
    }

    static Value copy(const detail::Handle &library, const kiln_value &value)
    {
        if (value.kind >= KILN_TENSOR && value.kind < KILN_SMALL_STRING)
            throw Error(KILN_ERROR_ARGUMENT, "a value that is only lent cannot be kept");
        library->api().retain(&value);
        return own(library, value);
    }

    // As kiln.h has them, borrowed. Objects are of this library: others may be unloaded before it.
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

    detail::Handle library_; // none for numbers
    kiln_value value_;
};

// A function of the host, to be called with values, by any thread.
using HostFunction = std::function<Value(const std::vector<Value> &arguments)>;

namespace detail {

struct Callback {
    std::weak_ptr<Opened> library; // which holds this: it must not hold itself
    HostFunction function;

    static int call(void *context, const kiln_value *arguments, std::int32_t count,
                    kiln_value *result) noexcept
    {
        const auto &self = *static_cast<const Callback *>(context);
        const Handle library = self.library.lock();
        if (library == nullptr)
            return KILN_ERROR_CALLBACK; // the library says that nobody said why
        return guarded(library->api().set_last_error, [&] {
            std::vector<Value> given;
            for (std::int32_t i = 0; i < count; i++)
                given.push_back(Value::copy(library, arguments[i]));
            std::vector<Value> made(1);
            made[0] = self.function(given);
            *result = Value::raw(library, made)[0];
            made[0].value_ = kiln_host_value(KILN_NONE); // handed over
        });
    }

    static void destroy(void *context) noexcept { delete static_cast<Callback *>(context); }
};

}  // namespace detail

// An argument of a tensor function: a tensor, borrowed for the call, or a number.
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

    // As kiln.h has it; valid while this is.
    kiln_value raw() const noexcept { return is_tensor_ ? kiln_host_lend(&tensor_) : number_; }
    bool is_read_only() const noexcept { return is_read_only_; }

private:
    kiln_tensor tensor_{};
    kiln_value number_{};
    bool is_tensor_ = false, is_read_only_ = false;
};

}  // namespace kiln
#endif
