// kiln.hpp - runs libraries compiled by Tensorkiln from C++17. Header-only, on top of kiln_host.h.
//
//     kiln::Library library("net.so");
//     kiln::Executor executor(library);
//     kiln::Tensor x({1, 784}, images);                  // a copy; Tensor::view() borrows
//     std::vector<kiln::Tensor> y = executor.run("main", {x});
//     for (float value : y[0].values<float>()) ...
//
// Errors: a failure throws kiln::Error with a code of kiln.h or kiln_library_file.h and one
// sentence, the same that C, Python and Rust hosts give for the same mistake; std::bad_alloc if
// memory is short. Comments name the codes that a function adds to those of the C function it is
// based on.
//
// Ownership: Library, Executor and Tensor can be moved, not copied; a moved-from object may only be
// assigned to or destroyed. The code of a library stays loaded until its Library, Executors and
// Values are destroyed, in any order.
//
// Threads: const member functions, Executor::run among them, may be called by any number of threads
// at once on the same object; several threads in one Executor are slower than each in its own.
// Other member functions require that no other thread uses the object.
#ifndef KILN_HPP
#define KILN_HPP

#include "kiln_value.hpp"

#include <initializer_list>

namespace kiln {

// References to the tensors of one call, which must live until it returns. Made implicitly from
// braces, run("main", {x, y}), or from a container of tensors, run("main", tensors).
template <class T>
class Arguments {
public:
    struct Reference {
        T *tensor;
        Reference(T &of) noexcept : tensor(&of) {}
    };

    Arguments(std::initializer_list<Reference> tensors)
    {
        for (const Reference &reference : tensors)
            tensors_.push_back(reference.tensor);
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

// The description of a function and of a parameter (kiln_library_file.h). The library owns them.
using Function = kiln_host_function;
using Param = kiln_host_param;

// The inputs and outputs of a function; all parameters of a tensor function are inputs.
inline Span<const Param> inputs_of(const Function &f) noexcept
{
    return {f.inputs, static_cast<std::size_t>(f.n_inputs)};
}

inline Span<const Param> outputs_of(const Function &f) noexcept
{
    return {f.outputs, static_cast<std::size_t>(f.n_outputs)};
}

namespace detail {

inline const kiln_host_function &find(const Opened &opened, const std::string &name)
{
    kiln_host_error error;
    const kiln_host_function *found = nullptr;
    check(kiln_host_find(opened.library, name.c_str(), &found, &error), error);
    return *found;
}

inline void check_read_only(const Function &f, const Param &param)
{
    if (std::strstr(param.role, "out") != nullptr)
        throw Error(KILN_ERROR_ARGUMENT, std::string(f.name) + ": argument '" + param.name +
                                             "' is written to: it is an output");
}

}  // namespace detail

// A loaded library: its functions, and the values, functions and loaders that the host gives it.
class Library {
public:
    // Opens the library at `path`, as kiln_host_open().
    explicit Library(const std::string &path) : opened_(std::make_shared<detail::Opened>(path)) {}

    Library(Library &&) noexcept = default;
    Library &operator=(Library &&) noexcept = default;
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    // The functions of the library; valid while it is loaded.
    Span<const Function> functions() const noexcept
    {
        const kiln_host_description &file = opened_->library->file;
        return {file.functions, static_cast<std::size_t>(file.n_functions)};
    }

    // The function of that name; valid while the library is loaded. KILN_ERROR_NAME if there is
    // none.
    const Function &function(const std::string &name) const { return detail::find(*opened_, name); }

    // Calls a tensor function with tensors and numbers in the order of its parameters, as
    // kiln_call(). KILN_ERROR_ARGUMENT for a read-only tensor as an output.
    void call(const std::string &name, const std::vector<Argument> &arguments) const
    {
        kiln_host_error error;
        const Function &f = function(name);
        std::vector<kiln_value> given;
        for (const Argument &argument : arguments) {
            if (argument.is_read_only() && given.size() < static_cast<std::size_t>(f.n_inputs))
                detail::check_read_only(f, f.inputs[given.size()]);
            given.push_back(argument.raw());
        }
        const int count = static_cast<int>(given.size());
        detail::check(kiln_host_call(opened_->library, &f, given.data(), count, &error), error);
    }

    // Values for functions of this library; KILN_ERROR_NAME if it has no outer functions. Strings,
    // shapes and tensors are copied. A tensor must be contiguous, or KILN_ERROR_ARGUMENT is thrown.
    // The items of a tuple must be numbers or values of this library.
    Value make_string(const std::string &text) const
    {
        return make(values().make_string, text.data(), static_cast<std::int64_t>(text.size()));
    }
    Value make_shape(const Tensor::Shape &sizes) const
    {
        return make(values().make_shape, sizes.data(), static_cast<int>(sizes.size()));
    }
    Value make_tensor(const Tensor &tensor) const
    {
        const kiln_tensor from = tensor.raw();
        const std::size_t bytes = tensor.bytes();
        Value made = make(values().make_tensor, from.shape, from.ndim, from.dtype);
        if (bytes > 0)
            std::memcpy(api().tensor_of(&made.value_)->data, from.data, bytes);
        return made;
    }
    Value make_tuple(const std::vector<Value> &items) const
    {
        const kiln_host_api &api = values();
        const std::vector<kiln_value> given = Value::raw(opened_, items);
        return make(api.make_tuple, given.data(), static_cast<int>(given.size()));
    }
    // A function of the host. It is destroyed with the last reference, in the thread that drops it.
    Value make_function(HostFunction function) const
    {
        const kiln_host_api &api = values();
        auto context = std::make_unique<detail::Callback>(
            detail::Callback{opened_, std::move(function)});
        Value made = make(api.make_function, &detail::Callback::call, context.get(),
                          &detail::Callback::destroy);
        static_cast<void>(context.release());
        return made;
    }

    // Registers a function of the host under a name for the library's call_packed, in place of an
    // earlier one, until the library is closed.
    void register_function(const std::string &name, HostFunction function) const
    {
        const Value made = make_function(std::move(function));
        opened_->keep(opened_->functions, name);
        opened_->report(api().register_function(name.c_str(), &made.value_));
    }

    // Registers a loader under a name, in place of an earlier one, until the library is closed.
    // KILN_ERROR_NAME if the library carries no artifacts for loaders.
    void register_loader(const std::string &name, Loader loader) const
    {
        kiln_host_error error;
        detail::check(kiln_host_check_loaders(opened_->library, &error), error);
        auto made = std::make_unique<detail::RegisteredLoader>(
            detail::RegisteredLoader{name, std::move(loader), api().set_last_error});
        const kiln_loader raw = {sizeof raw, made.get(), &detail::RegisteredLoader::load,
                                 &detail::RegisteredLoader::call, &detail::RegisteredLoader::unload};
        opened_->keep(opened_->loaders, std::move(made));
        opened_->report(api().register_loader(name.c_str(), &raw));
    }

    // Sets how many threads one call may use, the calling one included; 0 is the default, as
    // kiln_set_num_threads() describes. Applies to every Library object of the same file.
    void set_num_threads(int threads) const noexcept { api().set_num_threads(threads); }
    // The number that is in force, at least 1.
    int num_threads() const noexcept { return api().get_num_threads(); }

    // The functions of kiln.h. Those for values are null in a library without outer functions,
    // those for loaders in one without artifacts for loaders.
    const kiln_host_api &api() const noexcept { return opened_->api(); }

    // The address of a symbol that the library exports; null if it does not.
    void *address(const std::string &symbol) const noexcept
    {
        return kiln_host_address(opened_->library, symbol.c_str());
    }

private:
    friend class Executor;

    const kiln_host_api &values() const
    {
        kiln_host_error error;
        detail::check(kiln_host_check_values(opened_->library, &error), error);
        return api();
    }

    // Calls a kiln_make_...() function; its last parameter is where it writes the value.
    template <class F, class... From>
    Value make(F maker, From... from) const
    {
        kiln_value made;
        opened_->report(maker(from..., &made));
        return Value::own(opened_, made);
    }

    detail::Handle opened_;
};

// Runs functions of a library; owns the workspace for their intermediate results, and keeps the
// code of the library loaded.
class Executor {
public:
    // Codes: those of kiln_executor_create().
    explicit Executor(const Library &library) : opened_(library.opened_)
    {
        kiln_host_error error;
        kiln_host_executor *made = nullptr;
        detail::check(kiln_host_executor_create(opened_->library, &made, &error), error);
        executor_.reset(made);
    }

    // Runs a graph function; returns one new tensor for each output.
    std::vector<Tensor> run(const std::string &name, const Inputs &inputs) const
    {
        const Function &f = detail::find(*opened_, name);
        const std::vector<kiln_tensor> given = raw(inputs.tensors());
        std::vector<Tensor> outputs;
        for (int i = 0; i < f.n_outputs; i++)
            outputs.emplace_back(f.outputs[i].type, output_shape(f, given, i));
        run(f, given, raw(Outputs(outputs).tensors()));
        return outputs;
    }

    // Runs a graph or tensor function, writing to tensors of the caller's. For a tensor function,
    // `inputs` followed by `outputs` are its parameters in order, and every parameter that it
    // writes must be among `outputs`. KILN_ERROR_ARGUMENT for a read-only output.
    void run(const std::string &name, const Inputs &inputs, const Outputs &outputs) const
    {
        const Function &f = detail::find(*opened_, name);
        for (std::size_t i = 0; i < outputs.tensors().size(); i++)
            if (!outputs.tensors()[i]->is_writable())
                throw Error(KILN_ERROR_ARGUMENT, name + ": output " + std::to_string(i) +
                                                     " is read-only and cannot be filled");
        run(f, raw(inputs.tensors()), raw(outputs.tensors()));
    }

    // Calls any function of a library that has an outer function, as kiln_executor_invoke().
    // Arguments must be numbers or values of this library: KILN_ERROR_ARGUMENT.
    Value invoke(const std::string &name, const std::vector<Value> &arguments) const
    {
        kiln_host_error error;
        const Function &f = detail::find(*opened_, name);
        const std::vector<kiln_value> given = Value::raw(opened_, arguments);
        kiln_value result;
        detail::check(kiln_host_invoke(executor_.get(), &f, given.data(),
                                       static_cast<int>(given.size()), &result, &error),
                      error);
        return Value::own(opened_, result);
    }

    // Sets how many threads one call may use, the calling one included; 0 means the library's
    // number.
    void set_num_threads(int threads) const noexcept
    {
        opened_->api().executor_set_num_threads(executor_->executor, threads);
    }

    // Chooses and opens the device of this system, by its index among those of its kind, that runs
    // code of device `device`. Codes: those of kiln_host_set_device().
    void set_device(int device, int index, void *context = nullptr) const
    {
        kiln_host_error error;
        detail::check(kiln_host_set_device(executor_.get(), device, index, context, &error), error);
    }

    // Lets calls queue what they do on device `device` in a stream of the program's, and return without
    // waiting for it unless they copy from or to the host; null: in one of the library's. Codes: those
    // of kiln_host_set_stream().
    void set_stream(int device, void *stream) const
    {
        kiln_host_error error;
        detail::check(kiln_host_set_stream(executor_.get(), device, stream, &error), error);
    }

    // Lets runs be CUDA graphs, or lets them not. Codes: those of kiln_host_set_graphs().
    void set_graphs(bool on) const
    {
        kiln_host_error error;
        detail::check(kiln_host_set_graphs(executor_.get(), on ? 1 : 0, &error), error);
    }
    // A count of graphs, by enum kiln_graph_count.
    std::int64_t graph_count(int what) const noexcept
    {
        return kiln_host_graph_count(executor_.get(), what);
    }

    // The size of the workspace in bytes: the most that one call has needed so far.
    std::int64_t workspace_bytes() const noexcept
    {
        return opened_->api().executor_workspace_bytes(executor_->executor);
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
        detail::check(kiln_host_output_shape(opened_->library, &f, given.data(),
                                             static_cast<int>(given.size()), i, sizes, &ndim, &error),
                      error);
        return Tensor::Shape(sizes, sizes + ndim);
    }

    void run(const Function &f, const std::vector<kiln_tensor> &inputs,
             const std::vector<kiln_tensor> &outputs) const
    {
        kiln_host_error error;
        for (int i = 0; i < f.n_inputs && i < static_cast<int>(inputs.size()); i++)
            detail::check_read_only(f, f.inputs[i]);
        detail::check(kiln_host_run(executor_.get(), &f, inputs.data(),
                                    static_cast<int>(inputs.size()), outputs.data(),
                                    static_cast<int>(outputs.size()), &error),
                      error);
    }

    detail::Handle opened_; // before executor_, so that it is destroyed after it
    std::unique_ptr<kiln_host_executor, Destroy> executor_;
};

}  // namespace kiln
#endif
