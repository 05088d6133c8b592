// The CUDA driver, opened when the program runs: contexts, memory, modules and launches. No CUDA header is needed.
#ifndef SPARSETUNE_DRIVER_HPP
#define SPARSETUNE_DRIVER_HPP

#include "description.hpp"

#include <dlfcn.h>
#include <utility>
#include <vector>

namespace sparsetune {

namespace detail {

// A library that is opened when the program runs. It stays open: NVIDIA's leave threads behind that need their code.
class Library {
public:
    explicit Library(std::initializer_list<const char*> names) {
        for (const char* name : names) {
            handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
            if (handle_ != nullptr) {
                return;
            }
            const char* reason = ::dlerror();
            reason_ += (reason_.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name);
        }
    }

    bool open() const { return handle_ != nullptr; }
    const std::string& reason() const { return reason_; }

    // Null if the library has no such function.
    template <class Function>
    Function* find(const char* symbol) const {
        return reinterpret_cast<Function*>(::dlsym(handle_, symbol));
    }

    template <class Function>
    Function* get(const char* symbol) const {
        Function* function = find<Function>(symbol);
        if (function == nullptr) {
            throw Unavailable(std::string("The installed library has no ") + symbol + "; it is too old.");
        }
        return function;
    }

private:
    void* handle_ = nullptr;
    std::string reason_;
};

using Address = unsigned long long;
using Handle = void*;

// As CUlaunchAttribute, of a launch that may begin while the kernel before it in the stream still runs.
struct alignas(8) LaunchAttribute {
    int id = 6;
    char padding[4] = {};
    int allowed = 1;
    char rest[60] = {};
};

// As CUlaunchConfig.
struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

// The functions in use, by the names that every driver of CUDA 12 has.
class Driver {
    Library library_;

    Library opened() const {
        Library library({"libcuda.so.1", "libcuda.so"});
        if (!library.open()) {
            throw Unavailable("This plan needs an NVIDIA GPU, and there is no CUDA driver here: " + library.reason() + ".");
        }
        return library;
    }

public:
    Driver() : library_(opened()) {
        const int code = init(0);
        if (code != 0) {
            throw Unavailable("The CUDA driver does not start: " + describe(code) + ".");
        }
    }

    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    using Init = int(unsigned);
    Init* init = library_.get<Init>("cuInit");
    int (*version)(int*) = library_.get<int(int*)>("cuDriverGetVersion");
    int (*error_string)(int, const char**) = library_.get<int(int, const char**)>("cuGetErrorString");
    int (*device_count)(int*) = library_.get<int(int*)>("cuDeviceGetCount");
    int (*device_get)(int*, int) = library_.get<int(int*, int)>("cuDeviceGet");
    int (*device_name)(char*, int, int) = library_.get<int(char*, int, int)>("cuDeviceGetName");
    int (*device_attribute)(int*, int, int) = library_.get<int(int*, int, int)>("cuDeviceGetAttribute");
    int (*context_retain)(Handle*, int) = library_.get<int(Handle*, int)>("cuDevicePrimaryCtxRetain");
    int (*context_release)(int) = library_.get<int(int)>("cuDevicePrimaryCtxRelease_v2");
    int (*context_get)(Handle*) = library_.get<int(Handle*)>("cuCtxGetCurrent");
    int (*context_set)(Handle) = library_.get<int(Handle)>("cuCtxSetCurrent");
    int (*exchange_capture_mode)(unsigned*) = library_.get<int(unsigned*)>("cuThreadExchangeStreamCaptureMode");
    int (*memory_alloc)(Address*, std::size_t) = library_.get<int(Address*, std::size_t)>("cuMemAlloc_v2");
    int (*memory_free)(Address) = library_.get<int(Address)>("cuMemFree_v2");
    int (*host_alloc)(void**, std::size_t, unsigned) =
        library_.get<int(void**, std::size_t, unsigned)>("cuMemHostAlloc");
    int (*host_free)(void*) = library_.get<int(void*)>("cuMemFreeHost");
    using ToDevice = int(Address, const void*, std::size_t, CUstream);
    ToDevice* to_device = library_.get<ToDevice>("cuMemcpyHtoDAsync_v2");
    using ToHost = int(void*, Address, std::size_t, CUstream);
    ToHost* to_host = library_.get<ToHost>("cuMemcpyDtoHAsync_v2");
    using OnDevice = int(Address, Address, std::size_t, CUstream);
    OnDevice* on_device = library_.get<OnDevice>("cuMemcpyDtoDAsync_v2");
    using Fill = int(Address, unsigned, std::size_t, CUstream);
    Fill* fill = library_.get<Fill>("cuMemsetD32Async");
    using FillBytes = int(Address, unsigned char, std::size_t, CUstream);
    FillBytes* fill_bytes = library_.get<FillBytes>("cuMemsetD8Async");
    int (*stream_create)(CUstream*, unsigned) = library_.get<int(CUstream*, unsigned)>("cuStreamCreate");
    int (*stream_destroy)(CUstream) = library_.get<int(CUstream)>("cuStreamDestroy_v2");
    int (*stream_synchronize)(CUstream) = library_.get<int(CUstream)>("cuStreamSynchronize");
    int (*stream_capturing)(CUstream, int*) = library_.get<int(CUstream, int*)>("cuStreamIsCapturing");
    int (*event_create)(Handle*, unsigned) = library_.get<int(Handle*, unsigned)>("cuEventCreate");
    int (*event_record)(Handle, CUstream) = library_.get<int(Handle, CUstream)>("cuEventRecord");
    int (*event_elapsed)(float*, Handle, Handle) = library_.get<int(float*, Handle, Handle)>("cuEventElapsedTime");
    int (*event_destroy)(Handle) = library_.get<int(Handle)>("cuEventDestroy_v2");
    int (*module_load)(Handle*, const void*) = library_.get<int(Handle*, const void*)>("cuModuleLoadData");
    int (*module_unload)(Handle) = library_.get<int(Handle)>("cuModuleUnload");
    int (*module_function)(Handle*, Handle, const char*) =
        library_.get<int(Handle*, Handle, const char*)>("cuModuleGetFunction");
    int (*function_attribute)(int*, int, Handle) = library_.get<int(int*, int, Handle)>("cuFuncGetAttribute");
    int (*set_function_attribute)(Handle, int, int) = library_.get<int(Handle, int, int)>("cuFuncSetAttribute");
    using Launch = int(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                       void**);
    Launch* launch = library_.get<Launch>("cuLaunchKernel");

    // Of newer drivers: modules that belong to no context, launches with a configuration, and the sizes of parameters.
    using LibraryLoad = int(Handle*, const void*, void*, void**, unsigned, void*, void**, unsigned);
    LibraryLoad* library_load = library_.find<LibraryLoad>("cuLibraryLoadData");
    int (*library_unload)(Handle) = library_.find<int(Handle)>("cuLibraryUnload");
    int (*library_kernel)(Handle*, Handle, const char*) =
        library_.find<int(Handle*, Handle, const char*)>("cuLibraryGetKernel");
    int (*kernel_function)(Handle*, Handle) = library_.find<int(Handle*, Handle)>("cuKernelGetFunction");
    using LaunchEx = int(const LaunchConfig*, Handle, void**, void**);
    LaunchEx* launch_configured = library_.find<LaunchEx>("cuLaunchKernelEx");
    using ParameterInfo = int(Handle, std::size_t, std::size_t*, std::size_t*);
    ParameterInfo* parameter_info = library_.find<ParameterInfo>("cuFuncGetParamInfo");

    std::string describe(int code) const {
        const char* sentence = nullptr;
        if (error_string(code, &sentence) != 0 || sentence == nullptr) {
            return "driver code " + std::to_string(code);
        }
        return std::string(sentence) + " (driver code " + std::to_string(code) + ")";
    }

    void check(const char* what, int code) const {
        if (code != 0) {
            throw Error(std::string(what) + ": " + describe(code) + ".");
        }
    }
};

// While this lives, calls of this thread that a capture forbids (to allocate, to load) neither fail nor break a capture of
// another thread: nothing of them belongs to what that thread records.
class Relaxed {
public:
    explicit Relaxed(const Driver& driver) : driver_(driver) {
        driver.check("Exchanging the capture mode", driver.exchange_capture_mode(&mode_));
    }
    Relaxed(const Relaxed&) = delete;
    Relaxed& operator=(const Relaxed&) = delete;
    ~Relaxed() { driver_.exchange_capture_mode(&mode_); }

private:
    const Driver& driver_;
    // CU_STREAM_CAPTURE_MODE_RELAXED, and then the mode before.
    unsigned mode_ = 2;
};

// The primary context of a device, which the CUDA runtime and its users share, and a stream of our own.
class Context {
public:
    // Makes the context current; what was current before is current again at the end.
    class Entered {
    public:
        explicit Entered(const Context& context) : driver_(context.driver) {
            driver_.check("Asking for the current context", driver_.context_get(&previous_));
            changed_ = previous_ != context.handle_;
            if (changed_) {
                driver_.check("Entering the device's context", driver_.context_set(context.handle_));
            }
        }
        Entered(const Entered&) = delete;
        Entered& operator=(const Entered&) = delete;
        ~Entered() {
            if (changed_) {
                driver_.context_set(previous_);
            }
        }

    private:
        const Driver& driver_;
        Handle previous_ = nullptr;
        bool changed_ = false;
    };

    Context(const Driver& driver_in, int ordinal) : driver(driver_in) {
        const Relaxed relaxed(driver);
        int count = 0;
        driver.check("Counting devices", driver.device_count(&count));
        if (ordinal < 0 || ordinal >= count) {
            throw Unavailable("Device " + std::to_string(ordinal) + " does not exist; the driver reports " +
                              std::to_string(count) + ".");
        }
        driver.check("Opening the device", driver.device_get(&device, ordinal));
        driver.check("Opening the device's context", driver.context_retain(&handle_, device));
        try {
            const Entered entered(*this);
            // Not blocked by the legacy default stream.
            driver.check("Creating a stream", driver.stream_create(&stream, 1));
        } catch (...) {
            driver.context_release(device);
            throw;
        }
    }

    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    ~Context() {
        driver.stream_destroy(stream);
        driver.context_release(device);
    }

    unsigned attribute(int which) const {
        int value = 0;
        driver.check("Asking for a device's attribute", driver.device_attribute(&value, which, device));
        return static_cast<unsigned>(value);
    }

    bool capturing(CUstream on) const {
        int state = 0;
        driver.check("Asking whether the stream is being captured", driver.stream_capturing(on, &state));
        return state != 0;
    }

    // Waits for all work on any stream, by freeing memory: the driver waits before it does. cuCtxSynchronize would break a
    // capture of another thread, even on a relaxed one.
    void wait_for_all() const {
        Address address = 0;
        driver.check("Waiting for the device", driver.memory_alloc(&address, 256));
        driver.check("Kernel execution", driver.memory_free(address));
    }

    // The same at an end, where no error can be reported.
    void settle() const {
        Address address = 0;
        if (driver.memory_alloc(&address, 256) == 0) {
            driver.memory_free(address);
        }
    }

    const Driver& driver;
    int device = 0;
    CUstream stream = nullptr;

private:
    Handle handle_ = nullptr;
};

// Device memory. The context must be current when it is made and when it ends.
class Buffer {
public:
    Buffer(const Context& context, std::size_t bytes) : context_(&context), bytes_((bytes + 3) / 4 * 4) {
        const Driver& driver = context.driver;
        driver.check("Allocating device memory", driver.memory_alloc(&address_, bytes_ < 256 ? 256 : bytes_));
    }

    Buffer(Buffer&& other) noexcept : context_(other.context_), bytes_(other.bytes_), address_(other.address_) {
        other.address_ = 0;
    }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(context_, other.context_);
        std::swap(bytes_, other.bytes_);
        std::swap(address_, other.address_);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    ~Buffer() {
        if (address_ != 0) {
            context_->driver.memory_free(address_);
        }
    }

    Address address() const { return address_; }

    // In whole words.
    std::size_t bytes() const { return bytes_; }

    void write(const void* data, std::size_t bytes, CUstream stream) const {
        require(bytes);
        if (bytes > 0) {
            context_->driver.check("Copying to the device", context_->driver.to_device(address_, data, bytes, stream));
        }
    }

    // Waits for the stream.
    void read(void* data, std::size_t bytes, CUstream stream) const {
        require(bytes);
        if (bytes > 0) {
            context_->driver.check("Copying from the device", context_->driver.to_host(data, address_, bytes, stream));
        }
        context_->driver.check("Kernel execution", context_->driver.stream_synchronize(stream));
    }

    void fill(std::uint32_t word, CUstream stream) const {
        if (bytes_ > 0) {
            context_->driver.check("Filling device memory", context_->driver.fill(address_, word, bytes_ / 4, stream));
        }
    }

private:
    void require(std::size_t bytes) const {
        if (bytes > bytes_) {
            throw Error("The plan has an array of other lengths than it says.");
        }
    }

    const Context* context_;
    std::size_t bytes_;
    Address address_ = 0;
};

// A word of page-locked host memory that copies can be queued to. The context must be current when it is made and ends.
class HostWord {
public:
    explicit HostWord(const Context& context) : context_(context) {
        const unsigned portable = 1, mapped = 2;
        void* memory = nullptr;
        context.driver.check("Allocating host memory", context.driver.host_alloc(&memory, 64, portable | mapped));
        word_ = static_cast<volatile std::uint32_t*>(memory);
        *word_ = 0;
    }
    HostWord(const HostWord&) = delete;
    HostWord& operator=(const HostWord&) = delete;
    ~HostWord() { context_.driver.host_free(const_cast<std::uint32_t*>(word_)); }

    std::uint32_t get() const { return *word_; }
    void clear() const { *word_ = 0; }

    // Queues a copy of the word at this address.
    void take(Address from, CUstream stream) const {
        void* to = const_cast<std::uint32_t*>(word_);
        context_.driver.check("Copying from the device", context_.driver.to_host(to, from, sizeof *word_, stream));
    }

private:
    const Context& context_;
    volatile std::uint32_t* word_ = nullptr;
};

// Loaded kernels.
class Code {
public:
    // `image` is machine code, or PTX with a terminating zero. Throws Error if the driver does not take it.
    Code(const Context& context, const void* image) : driver_(context.driver) {
        as_library_ = driver_.library_load != nullptr && driver_.library_unload != nullptr &&
                      driver_.library_kernel != nullptr && driver_.kernel_function != nullptr;
        const int code = as_library_ ? driver_.library_load(&handle_, image, nullptr, nullptr, 0, nullptr, nullptr, 0)
                                     : driver_.module_load(&handle_, image);
        driver_.check("Loading the kernels", code);
    }
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    ~Code() { as_library_ ? driver_.library_unload(handle_) : driver_.module_unload(handle_); }

    Handle function(const char* symbol) const {
        const std::string what = std::string("Looking up the kernel ") + symbol;
        Handle function = nullptr;
        if (as_library_) {
            Handle kernel = nullptr;
            driver_.check(what.c_str(), driver_.library_kernel(&kernel, handle_, symbol));
            driver_.check(what.c_str(), driver_.kernel_function(&function, kernel));
        } else {
            driver_.check(what.c_str(), driver_.module_function(&function, handle_, symbol));
        }
        return function;
    }

private:
    const Driver& driver_;
    bool as_library_ = false;
    Handle handle_ = nullptr;
};

}  // namespace detail

}  // namespace sparsetune

#endif
