// Plans for a CPU, run by sparsetune's own library, libsparsetune_c.so (its header is sparsetune.h).
#ifndef SPARSETUNE_HOST_PLAN_HPP
#define SPARSETUNE_HOST_PLAN_HPP

#include "backend.hpp"

namespace sparsetune {

namespace detail {

class HostPlan : public Backend {
public:
    HostPlan(const Description& plan, const File& file, std::vector<std::string>& warnings) : plan_(plan) {
        if (!library_.open()) {
            throw Unavailable("This plan is for a CPU and needs libsparsetune_c.so, which was not found: " +
                              library_.reason() + ".");
        }
        const unsigned known = 1, found = library_.get<unsigned()>("sparsetune_abi")();
        if (found != known) {
            throw Unavailable("The installed libsparsetune_c.so has the interface " + std::to_string(found) +
                              "; this program was written for " + std::to_string(known) + ".");
        }
        using Open = int(const char*, Handle*);
        check(library_.get<Open>("sparsetune_plan_open")(file.path().c_str(), &handle_));
        const auto warning = library_.get<const char*(Handle, std::size_t)>("sparsetune_plan_warning");
        const char* sentence = nullptr;
        for (std::size_t at = 0; (sentence = warning(handle_, at)) != nullptr; ++at) {
            warnings.emplace_back(sentence);
        }
    }

    ~HostPlan() override { library_.get<void(Handle)>("sparsetune_plan_close")(handle_); }

    void run(const Call& call) override {
        run_on_host(reinterpret_cast<const void*>(call.b), reinterpret_cast<void*>(call.c), call.alpha, call.beta);
    }

    void run_on_host(const void* b, void* c, double alpha, double beta) override {
        check(run_(handle_, b, c, alpha, beta));
    }

    void update_from_host(const double* values, std::size_t count, CUstream) override {
        using Update = int(Handle, const double*, std::size_t);
        check(library_.get<Update>("sparsetune_plan_update_values")(handle_, values, count));
    }

    void update_on_device(const void*, CUstream) override {
        throw Error("This plan runs on a CPU: give it values in host memory.");
    }

    bool gave_up() override { return false; }

    Timing measure(unsigned calls) override {
        const std::vector<unsigned char> b(plan_.b.bytes(), 0);
        std::vector<unsigned char> c(plan_.c.bytes(), 0);
        std::vector<double> rounds;
        for (int round = 0; round < 11; ++round) {
            const auto started = std::chrono::steady_clock::now();
            for (unsigned call = 0; call < calls; ++call) {
                run_on_host(b.data(), c.data(), 1.0, 0.0);
            }
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - started;
            // The first round warms up.
            if (round > 0) {
                rounds.push_back(took.count() / calls);
            }
        }
        return {median(rounds), 0.0, 0.0, 0.0};
    }

private:
    void check(int status) const {
        // SPARSETUNE_OTHER_DEVICE and SPARSETUNE_STALE.
        const int other_device = 3, stale = 4;
        if (status == 0) {
            return;
        }
        const std::string sentence = library_.get<const char*()>("sparsetune_error")();
        if (status == other_device || status == stale) {
            throw Unavailable(sentence);
        }
        throw Error(sentence);
    }

    Library library_{"libsparsetune_c.so"};
    const Description& plan_;
    Handle handle_ = nullptr;
    using Run = int(Handle, const void*, void*, double, double);
    Run* run_ = library_.open() ? library_.get<Run>("sparsetune_plan_run") : nullptr;
};

}  // namespace detail

}  // namespace sparsetune

#endif
