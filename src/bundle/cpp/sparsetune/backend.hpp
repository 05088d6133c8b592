// What every kind of plan does; one of them for each kind is below.
#ifndef SPARSETUNE_BACKEND_HPP
#define SPARSETUNE_BACKEND_HPP

#include "arrays.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>

namespace sparsetune {

namespace detail {

// The numbers of one call.
struct Call {
    Address b;
    Address c;
    CUstream stream;
    double alpha;
    double beta;
};

class Backend {
public:
    Backend() = default;
    Backend(const Backend&) = delete;
    Backend& operator=(const Backend&) = delete;
    virtual ~Backend() = default;

    // Queues one call; on the CPU it is complete on return.
    virtual void run(const Call& call) = 0;
    // One call on operands in host memory, complete on return.
    virtual void run_on_host(const void* b, void* c, double alpha, double beta) = 0;
    virtual void update_from_host(const double* values, std::size_t count, CUstream stream) = 0;
    virtual void update_on_device(const void* values, CUstream stream) = 0;
    // Throws if update_from_host would refuse these values.
    virtual void require_values(const double*, std::size_t) {}
    // Throws if that would, since the stream is being captured.
    virtual void require_update_on_device(CUstream) {}
    virtual bool gave_up() = 0;
    virtual Timing measure(unsigned calls) = 0;
};

// Median of rounds of calls: microseconds of one call until `finish` returns, and until it is queued.
struct Rounds {
    double call_us;
    double queue_us;
};

inline double median(std::vector<double> numbers) {
    std::sort(numbers.begin(), numbers.end());
    return numbers[numbers.size() / 2];
}

// A plan on a GPU: what kernels and vendors' routines share. Members end in reverse order, memory before its context.
class OnDevice : public Backend {
public:
    OnDevice(const Description& plan, const File& file, int ordinal, std::vector<std::string>& warnings)
        : plan_(plan), file_(file), context_(driver_, ordinal) {
        // Of CUdevice_attribute, by the numbers in cuda.h.
        const int multiprocessors = 16, major = 75, minor = 76;
        const Driver& driver = driver_;
        char name[256] = {};
        driver.check("Asking for the device's name", driver.device_name(name, sizeof name - 1, context_.device));
        const std::string capability =
            std::to_string(context_.attribute(major)) + "." + std::to_string(context_.attribute(minor));
        if (capability != plan.compute_capability) {
            throw Unavailable(std::string("This plan is for compute capability ") + plan.compute_capability +
                              "; the device (" + name + ") has " + capability + ".");
        }
        const unsigned count = context_.attribute(multiprocessors);
        if (count < plan.multiprocessors) {
            throw Unavailable("This plan is for " + std::to_string(plan.multiprocessors) +
                              " multiprocessors; the device (" + name + ") has " + std::to_string(count) + ".");
        }
        if (std::string(name) != plan.device) {
            warnings.push_back(std::string("This plan was made on ") + plan.device + "; this device is " + name +
                               ", so times may differ.");
        }
        int version = 0;
        driver.check("Asking for the driver's version", driver.version(&version));
        const std::string installed = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
        const std::string measured = std::string(plan.driver).substr(0, std::string(plan.driver).find('/'));
        if (installed != measured) {
            warnings.push_back("This plan was made with a driver of CUDA " + measured + "; this one is of CUDA " +
                               installed + ".");
        }
    }

    void run(const Call& call) override {
        const Context::Entered entered(context_);
        const std::lock_guard<std::mutex> lock(mutex_);
        arrays_->require();
        if (reported()) {
            if (!context_.capturing(call.stream)) {
                const Relaxed relaxed(driver_);
                context_.wait_for_all();
                look_for_status();
            }
            throw Error("A kernel of an earlier call waited longer than its limit and ended itself; its result is not valid, "
                        "nor are those of the calls after it. The device is unharmed.");
        }
        queue(call);
    }

    void run_on_host(const void* b, void* c, double alpha, double beta) override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const Buffer device_b(context_, plan_.b.bytes()), device_c(context_, plan_.c.bytes());
        device_b.write(b, plan_.b.bytes(), context_.stream);
        device_c.write(c, plan_.c.bytes(), context_.stream);
        run({device_b.address(), device_c.address(), context_.stream, alpha, beta});
        device_c.read(c, plan_.c.bytes(), context_.stream);
        if (gave_up()) {
            throw Error("A kernel of the plan waited longer than its limit and ended itself; the device is unharmed.");
        }
    }

    void update_from_host(const double* values, std::size_t count, CUstream stream) override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const std::lock_guard<std::mutex> lock(mutex_);
        refuse_capture(stream);
        arrays_->update_from_host(values, count, stream);
        took_values(stream);
    }

    void require_values(const double* values, std::size_t count) override {
        const std::lock_guard<std::mutex> lock(mutex_);
        arrays_->accepted(values, count);
    }

    void update_on_device(const void* values, CUstream stream) override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const std::lock_guard<std::mutex> lock(mutex_);
        if (arrays_->gathers_on_host() || waits_for_values()) {
            refuse_capture(stream);
        }
        arrays_->update_on_device(reinterpret_cast<Address>(values), stream);
        took_values(stream);
    }

    void require_update_on_device(CUstream stream) override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const std::lock_guard<std::mutex> lock(mutex_);
        if (arrays_->gathers_on_host() || waits_for_values()) {
            refuse_capture(stream);
        }
    }

    bool gave_up() override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const std::lock_guard<std::mutex> lock(mutex_);
        context_.wait_for_all();
        return look_for_status();
    }

    Timing measure(unsigned calls) override {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        const Buffer b(context_, plan_.b.bytes()), c(context_, plan_.c.bytes());
        b.fill(0, context_.stream);
        c.fill(0, context_.stream);
        const Call call = {b.address(), c.address(), context_.stream, 1.0, 0.0};
        const Rounds whole = rounds(calls, [&] { run(call); });
        if (!launch(call)) {
            return {whole.call_us, whole.queue_us, 0.0, 0.0};
        }
        const Rounds bare = rounds(calls, [&] { launch(call); });
        if (gave_up()) {
            throw Error("A kernel of the plan waited longer than its limit while it was timed.");
        }
        return {whole.call_us, whole.queue_us, bare.call_us, bare.queue_us};
    }

protected:
    // Called while the context is current and the lock is held.
    virtual void queue(const Call& call) = 0;
    virtual void took_values(CUstream) {}
    virtual bool waits_for_values() const { return false; }
    virtual bool look_for_status() { return false; }
    // Whether an earlier call has brought to the host that a kernel gave up. Asks nothing of the device.
    virtual bool reported() const { return false; }
    // The launches of a call with nothing around them; false if a library launches.
    virtual bool launch(const Call&) { return false; }

    // To be called at the end of a subclass, while the context is current: memory must not outlive its context.
    void release() {
        arrays_.reset();
    }

    Driver driver_;
    const Description& plan_;
    const File& file_;
    Context context_;
    std::mutex mutex_;
    std::unique_ptr<Arrays> arrays_;

private:
    void refuse_capture(CUstream stream) const {
        if (context_.capturing(stream)) {
            throw Error("New values cannot be put in place while their stream is being captured.");
        }
    }

    template <class Queue>
    Rounds rounds(unsigned calls, Queue queue) const {
        const Driver& driver = context_.driver;
        Handle events[2] = {};
        driver.check("Creating an event", driver.event_create(&events[0], 0));
        driver.check("Creating an event", driver.event_create(&events[1], 0));
        std::vector<double> on_device, on_host;
        for (int round = 0; round < 11; ++round) {
            driver.check("Recording an event", driver.event_record(events[0], context_.stream));
            const auto started = std::chrono::steady_clock::now();
            for (unsigned call = 0; call < calls; ++call) {
                queue();
            }
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - started;
            driver.check("Recording an event", driver.event_record(events[1], context_.stream));
            driver.check("Kernel execution", driver.stream_synchronize(context_.stream));
            float ms = 0;
            driver.check("Reading events", driver.event_elapsed(&ms, events[0], events[1]));
            // The first round warms up.
            if (round > 0) {
                on_device.push_back(1e3 * static_cast<double>(ms) / calls);
                on_host.push_back(took.count() / calls);
            }
        }
        driver.event_destroy(events[0]);
        driver.event_destroy(events[1]);
        return {median(on_device), median(on_host)};
    }
};

}  // namespace detail

}  // namespace sparsetune

#endif
