// Plans whose kernels are in the bundle.
#ifndef SPARSETUNE_KERNEL_PLAN_HPP
#define SPARSETUNE_KERNEL_PLAN_HPP

#include "backend.hpp"

namespace sparsetune {

namespace detail {

// Bytes of an argument as kernels declare it.
inline std::size_t argument_size(const Argument& argument) {
    switch (argument.role) {
        case Role::epoch:
        case Role::u32:
        case Role::f32: return 4;
        case Role::alpha:
        case Role::beta: return bytes_of(static_cast<Element>(argument.first));
        default: return 8;
    }
}

inline std::uint64_t factor_bits(double value, Element type) {
    std::uint64_t bits = 0;
    if (type == Element::f16) {
        return half_bits(value);
    }
    if (type == Element::bf16) {
        return bf16_bits(value);
    }
    if (type == Element::f32) {
        const float single = static_cast<float>(value);
        std::memcpy(&bits, &single, sizeof single);
    } else {
        std::memcpy(&bits, &value, sizeof value);
    }
    return bits;
}

// The scratch memory of a sequence of calls, and the arguments of its launches.
class Lane {
public:
    Lane(const Context& context, const Description& plan, const Arrays& arrays) : plan_(plan) {
        for (const Scratch& scratch : plan.scratch) {
            scratch_.emplace_back(context, scratch.bytes);
        }
        status_ = std::make_unique<Buffer>(context, 4);
        for (const Step& step : plan.steps) {
            for (const Argument& argument : step.arguments) {
                if (argument.role == Role::status && !reported_) {
                    reported_ = std::make_unique<HostWord>(context);
                }
            }
        }
        for (const Step& step : plan.steps) {
            words_.emplace_back(step.arguments.count);
            for (std::size_t at = 0; at < step.arguments.count; ++at) {
                words_.back()[at] = constant(step.arguments[at], arrays);
            }
            // Both stay where they are from now on.
            pointers_.emplace_back();
            for (std::uint64_t& word : words_.back()) {
                pointers_.back().push_back(&word);
            }
        }
    }

    void fill(CUstream stream) const {
        for (std::size_t at = 0; at < scratch_.size(); ++at) {
            scratch_[at].fill(plan_.scratch[at].fill, stream);
        }
    }

    void restart(CUstream stream) {
        fill(stream);
        status_->fill(0, stream);
        calls_ = 0;
    }

    // Brings the status to the host, without waiting, if a kernel can give up.
    void report(CUstream stream) const {
        if (reported_) {
            reported_->take(status_->address(), stream);
        }
    }

    bool reported() const { return reported_ && reported_->get() != 0; }

    // All work must be complete.
    void forget() const {
        if (reported_) {
            reported_->clear();
        }
    }

    bool gave_up(CUstream stream) const {
        std::uint32_t word = 0;
        status_->read(&word, sizeof word, stream);
        return word != 0;
    }

    // The number of the next call, counted from 0.
    std::uint64_t next() { return calls_++; }

    void launch(const std::vector<Kernel>& kernels, const Call& call, std::uint64_t number) {
        for (std::size_t step = 0; step < plan_.steps.count; ++step) {
            const Table<Argument>& arguments = plan_.steps[step].arguments;
            for (std::size_t at = 0; at < arguments.count; ++at) {
                set(words_[step][at], arguments[at], call, number);
            }
            kernels[step].launch(plan_.steps[step], pointers_[step].data(), call.stream);
        }
    }

private:
    std::uint64_t constant(const Argument& argument, const Arrays& arrays) const {
        switch (argument.role) {
            case Role::array: return arrays.address(argument.first);
            case Role::scratch: return scratch_.at(argument.first).address();
            case Role::max_wait_ns: return plan_.max_wait_ns;
            case Role::status: return status_->address();
            default: return argument.first;
        }
    }

    void set(std::uint64_t& word, const Argument& argument, const Call& call, std::uint64_t number) const {
        switch (argument.role) {
            case Role::b: word = call.b; return;
            case Role::c: word = call.c; return;
            case Role::turn:
                word = scratch_.at(number % 2 == 0 ? argument.first : argument.second).address();
                return;
            // For kernels, 0 means "never".
            case Role::epoch: word = number % 0xffffffffu + 1; return;
            case Role::alpha: word = factor_bits(call.alpha, static_cast<Element>(argument.first)); return;
            case Role::beta: word = factor_bits(call.beta, static_cast<Element>(argument.first)); return;
            default: return;
        }
    }

    const Description& plan_;
    std::vector<Buffer> scratch_;
    // 0 until a kernel gives up.
    std::unique_ptr<Buffer> status_;
    // What calls brought of it.
    std::unique_ptr<HostWord> reported_;
    std::vector<std::vector<std::uint64_t>> words_;
    std::vector<std::vector<void*>> pointers_;
    std::uint64_t calls_ = 0;
};

class KernelPlan : public OnDevice {
public:
    KernelPlan(const Description& plan, const File& file, int ordinal, std::vector<std::string>& warnings)
        : OnDevice(plan, file, ordinal, warnings) {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        try {
            std::vector<const char*> symbols;
            std::vector<bool> wanted(plan.arrays.count, false);
            for (const Step& step : plan.steps) {
                symbols.push_back(step.symbol);
                for (const Argument& argument : step.arguments) {
                    if (argument.role == Role::array) {
                        wanted.at(argument.first) = true;
                    }
                }
            }
            code_ = std::make_unique<Kernels>(context_, file, plan.module, symbols, warnings);
            for (std::size_t at = 0; at < plan.steps.count; ++at) {
                std::vector<std::size_t> sizes;
                for (const Argument& argument : plan.steps[at].arguments) {
                    sizes.push_back(argument_size(argument));
                }
                code_->kernels[at].check(plan.steps[at], sizes);
            }
            arrays_ = std::make_unique<Arrays>(context_, file, plan, wanted, warnings);
            usual_ = std::make_unique<Lane>(context_, plan, *arrays_);
            usual_->restart(context_.stream);
            if (plan.refill) {
                captured_ = std::make_unique<Lane>(context_, plan, *arrays_);
                captured_->restart(context_.stream);
            }
            context_.wait_for_all();
        } catch (...) {
            free();
            throw;
        }
    }

    ~KernelPlan() override {
        try {
            const Context::Entered entered(context_);
            const Relaxed relaxed(driver_);
            free();
        } catch (const Error&) {
            // The context is lost, with all its memory.
        }
    }

protected:
    void queue(const Call& call) override {
        if (captured_ && context_.capturing(call.stream)) {
            // Whenever the graph runs, it is as a first call.
            captured_->fill(call.stream);
            zero(call);
            captured_->launch(code_->kernels, call, 0);
            return;
        }
        const std::uint64_t number = usual_->next();
        try {
            zero(call);
            usual_->launch(code_->kernels, call, number);
            // A copy to the host ends a call later, so the first calls and then few bring the word; it stays set.
            if (number < 8 || number % 32 == 31) {
                usual_->report(call.stream);
            }
        } catch (...) {
            // What some of the launches left behind is useless to the next call.
            usual_->restart(call.stream);
            throw;
        }
    }

    bool reported() const override { return usual_->reported() || (captured_ && captured_->reported()); }

    bool look_for_status() override {
        bool any = usual_->gave_up(context_.stream) || reported();
        any = (captured_ && captured_->gave_up(context_.stream)) || any;
        if (any) {
            usual_->restart(context_.stream);
            usual_->forget();
            if (captured_) {
                captured_->forget();
                captured_->restart(context_.stream);
            }
            context_.wait_for_all();
        }
        return any;
    }

    bool launch(const Call& call) override {
        usual_->launch(code_->kernels, call, usual_->next());
        return true;
    }

private:
    void zero(const Call& call) const {
        const std::size_t bytes = plan_.c.bytes();
        if (!plan_.zero_output || bytes == 0) {
            return;
        }
        const Driver& driver = context_.driver;
        const int code = bytes % 4 == 0 && call.c % 4 == 0 ? driver.fill(call.c, 0, bytes / 4, call.stream)
                                                           : driver.fill_bytes(call.c, 0, bytes, call.stream);
        driver.check("Zeroing the output", code);
    }

    void free() {
        context_.settle();
        captured_.reset();
        usual_.reset();
        code_.reset();
        release();
    }

    std::unique_ptr<Kernels> code_;
    std::unique_ptr<Lane> usual_;
    std::unique_ptr<Lane> captured_;
};

}  // namespace detail

}  // namespace sparsetune

#endif
