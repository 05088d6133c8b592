// Runs a plan of sparsetune from its bundle: C++17, no CUDA header, no library at link time but the loader's own (-ldl where
// the C library has none). plan.hpp, beside this file, describes the plan; the bundle holds its kernels and arrays.
//
//     #include "plan.hpp"
//     sparsetune::Plan plan(sparsetune_plan::description, "NAME.stplan");
//     plan(b, c, stream);
//
// The bundle's file is mapped as long as the plan lives, so it must not be overwritten or cut short in place: the program
// would read other numbers, or be killed by SIGBUS. Write a new one beside it and rename it, as sparsetune's export does.
#ifndef SPARSETUNE_HPP
#define SPARSETUNE_HPP

#include "sparsetune/host_plan.hpp"
#include "sparsetune/kernel_plan.hpp"
#include "sparsetune/vendor_plan.hpp"

namespace sparsetune {

// A plan that is ready to run. On a GPU it lives in the device's primary context, which the CUDA runtime uses too, and
// leaves the current context of every thread as it is. Calls share scratch memory, so those of one plan must follow each
// other on the device: on one stream, or on several that wait for one another. Functions throw Error with a sentence.
class Plan {
public:
    // Loads the bundle that `description` is of, which must outlive the plan, on the device with this number. Throws
    // Unavailable if this machine cannot run it. Every hash is verified unless `verify` is false.
    Plan(const Description& description, const std::string& path, int device = 0, bool verify = true)
        : description_(description), file_(path) {
        if (verify) {
            file_.verify(description);
        }
        switch (description.kind) {
            case Kind::kernels:
                backend_ = std::make_unique<detail::KernelPlan>(description, file_, device, warnings_);
                break;
            case Kind::host: backend_ = std::make_unique<detail::HostPlan>(description, file_, warnings_); break;
            case Kind::cusparse:
            case Kind::cublas:
                backend_ = std::make_unique<detail::VendorPlan>(description, file_, device, warnings_);
                break;
        }
    }

    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // What differs from where the plan was made but does not matter for the result.
    const std::vector<std::string>& warnings() const { return warnings_; }

    const Description& description() const { return description_; }

    // Queues c = f(b) on the stream, or c = alpha A b + beta c if the plan accumulates. `b` and `c` are device addresses (host
    // addresses of a plan for a CPU, which has computed on return). Allocates nothing and does not wait. If the stream is
    // being captured, the call becomes part of the graph. Where kernels can give up, a call within 32 after one that did throws
    // instead of being queued, since that one's result and all after it are not valid; the next begins anew. Ask gave_up() about
    // the last calls, and about graphs.
    void operator()(const void* b, void* c, CUstream stream = nullptr, double alpha = 1.0, double beta = 0.0) const {
        const detail::Address from = reinterpret_cast<std::uintptr_t>(b), to = reinterpret_cast<std::uintptr_t>(c);
        if (!description_.accumulate && (alpha != 1.0 || beta != 0.0)) {
            throw Error("This plan computes c from b alone: alpha must be 1 and beta 0.");
        }
        const std::uint64_t b_bytes = description_.b.bytes(), c_bytes = description_.c.bytes();
        if (c_bytes == 0) {
            return;
        }
        require("b", from, description_.b);
        require("c", to, description_.c);
        if (from < to + c_bytes && to < from + b_bytes) {
            throw Error("b and c overlap.");
        }
        backend_->run({from, to, stream, alpha, beta});
    }

    // New values of the matrix, in the order of the entries of the one that was uploaded, in host memory. Calls queued on the
    // stream before use the old values, calls after it the new ones. Solves of cuSPARSE may be analysed again, and dense
    // products made dense again, which waits. How near an approximate plan (families `sweeps` and `inverse`) comes was
    // measured with the values before: with others its error is not known.
    void update_values(const double* values, std::size_t count, CUstream stream = nullptr) {
        backend_->update_from_host(values, count, stream);
    }

    // The same in device memory, in the plan's element type.
    void update_values_on_device(const void* values, CUstream stream = nullptr) {
        backend_->update_on_device(values, stream);
    }

    // Throws if new values cannot be put in place: at all, or on the device while this stream is being captured. To be asked before
    // values are given to several plans.
    void require_updatable() const {
        if (!description_.updatable) {
            throw Error("The values of this plan cannot be replaced here: its arrays are functions of all values.");
        }
    }
    // Throws if these values would be refused. To be asked before they are given to several plans.
    void require_values(const double* values, std::size_t count) const { backend_->require_values(values, count); }
    void require_update_on_device(CUstream stream) const { backend_->require_update_on_device(stream); }

    // One call on operands in host memory, complete on return.
    void run_on_host(const void* b, void* c) const { backend_->run_on_host(b, c, 1.0, 0.0); }

    // Compares a call on drawn inputs with sampled outputs. For the values that the bundle was made with; waits.
    CheckReport check() const {
        detail::Trial trial(description_);
        const Check& check = description_.check;
        if (description_.c.bytes() > 0) {
            backend_->run_on_host(trial.b.data(), trial.c.data(), check.alpha, check.beta);
        }
        return trial.report(description_, file_);
    }

    // Whether a kernel waited too long and ended itself since this was asked last; what it wrote is not the result. Waits for
    // all work on the device's context, and makes the next call begin anew.
    bool gave_up() const { return backend_->gave_up(); }

    // Times calls on operands of zeros.
    Timing measure(unsigned calls) const { return backend_->measure(calls); }

private:
    static void require(const char* name, std::uintptr_t address, const Dense& dense) {
        if (dense.bytes() > 0 && address == 0) {
            throw Error(std::string("The address of ") + name + " is null.");
        }
        if (address % dense.alignment != 0) {
            throw Error(std::string(name) + " must begin at a multiple of " + std::to_string(dense.alignment) + " bytes.");
        }
    }

    const Description& description_;
    detail::File file_;
    std::vector<std::string> warnings_;
    std::unique_ptr<detail::Backend> backend_;
};

}  // namespace sparsetune

#endif
