// Two plans that one call runs: the solves with both triangles of one matrix.
//
//     #include "plan.hpp"
//     sparsetune::Pair pair(sparsetune_first::description, "first.stplan", sparsetune_second::description, "second.stplan");
//     pair(b, x, stream);
#ifndef SPARSETUNE_PAIR_HPP
#define SPARSETUNE_PAIR_HPP

#include "../sparsetune.hpp"

namespace sparsetune {

namespace detail {

// The vector between two plans: in the memory of their GPU, or of the host.
class Between {
public:
    Between(const Dense& dense, bool on_device, int ordinal) {
        if (!on_device) {
            // In words that suit every element.
            words_.resize((dense.bytes() + 7) / 8);
            return;
        }
        driver_ = std::make_unique<Driver>();
        context_ = std::make_unique<Context>(*driver_, ordinal);
        const Context::Entered entered(*context_);
        const Relaxed relaxed(*driver_);
        buffer_ = std::make_unique<Buffer>(*context_, dense.bytes());
    }

    Between(const Between&) = delete;
    Between& operator=(const Between&) = delete;

    ~Between() {
        if (!buffer_) {
            return;
        }
        try {
            const Context::Entered entered(*context_);
            const Relaxed relaxed(*driver_);
            context_->wait_for_all();
            buffer_.reset();
        } catch (const Error&) {
            // The context is lost, with all its memory.
        }
    }

    // A call on operands in host memory: in the memory of the plans' GPU, where they are on one.
    template <class Call>
    void run_on_host(const void* b, std::size_t b_bytes, void* x, std::size_t x_bytes, Call call) {
        if (!buffer_) {
            call(b, x, nullptr);
            return;
        }
        const Context::Entered entered(*context_);
        const Relaxed relaxed(*driver_);
        const Buffer device_b(*context_, b_bytes), device_x(*context_, x_bytes);
        device_b.write(b, b_bytes, context_->stream);
        call(reinterpret_cast<const void*>(device_b.address()), reinterpret_cast<void*>(device_x.address()), context_->stream);
        device_x.read(x, x_bytes, context_->stream);
    }

    void* address() {
        return buffer_ ? reinterpret_cast<void*>(buffer_->address()) : static_cast<void*>(words_.data());
    }

private:
    std::vector<std::uint64_t> words_;
    std::unique_ptr<Driver> driver_;
    std::unique_ptr<Context> context_;
    std::unique_ptr<Buffer> buffer_;
};

}  // namespace detail

// Both plans, ready to run. As for Plan, calls follow each other; the vector between the two is as their scratch memory.
class Pair {
public:
    // Loads both, as Plan does.
    Pair(const Description& first, const std::string& first_path, const Description& second,
         const std::string& second_path, int device = 0, bool verify = true)
        : first_(first, first_path, device, verify),
          second_(second, second_path, device, verify),
          between_(first.c, first.kind != Kind::host, device) {
        if (first.c.bytes() != second.b.bytes() || (first.kind == Kind::host) != (second.kind == Kind::host)) {
            throw Error("The second plan does not read what the first one computes.");
        }
    }

    const Plan& first() const { return first_; }
    const Plan& second() const { return second_; }

    // Queues both calls on the stream: x of the second from what the first computes of b. Allocates nothing and does not wait. If
    // the stream is being captured, both become part of the graph. Calls of several threads are queued one after the other, each of
    // both.
    void operator()(const void* b, void* x, CUstream stream = nullptr) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (torn_) {
            throw Error("New values have reached the first plan of the pair and not the second: update the values again.");
        }
        first_(b, between_.address(), stream);
        second_(between_.address(), x, stream);
    }

    // New values for both: all of the matrix, once, as for Plan. If the second refuses what the first has taken, this throws, and so
    // does every call until values are given again. The error of approximate plans is not known with other values, as of Plan.
    void update_values(const double* values, std::size_t count, CUstream stream = nullptr) {
        const std::lock_guard<std::mutex> lock(mutex_);
        require_updatable();
        first_.require_values(values, count);
        second_.require_values(values, count);
        first_.update_values(values, count, stream);
        torn_ = true;
        second_.update_values(values, count, stream);
        torn_ = false;
    }

    // The same in device memory, in the plans' element type. While the stream is being captured, this throws before anything is queued
    // if either plan cannot take values so.
    void update_values_on_device(const void* values, CUstream stream = nullptr) {
        const std::lock_guard<std::mutex> lock(mutex_);
        require_updatable();
        first_.require_update_on_device(stream);
        second_.require_update_on_device(stream);
        first_.update_values_on_device(values, stream);
        torn_ = true;
        second_.update_values_on_device(values, stream);
        torn_ = false;
    }

    // One call on operands in host memory, complete on return.
    void run_on_host(const void* b, void* x) {
        between_.run_on_host(b, first_.description().b.bytes(), x, second_.description().c.bytes(),
                             [this](const void* from, void* to, CUstream stream) { (*this)(from, to, stream); });
        if (gave_up()) {
            throw Error("A kernel of the pair waited longer than its limit and ended itself; the device is unharmed.");
        }
    }

    // How far one call of both is from one call of each on drawn inputs, as a share of what rounding may make of it: what is between
    // the plans is in nobody's samples. Above 1 the call of both is wrong.
    double differs() {
        const detail::Trial trial(first_.description());
        const std::size_t bytes = second_.description().c.bytes();
        std::vector<unsigned char> between(bytes), apart(bytes), both(bytes);
        first_.run_on_host(trial.b.data(), between.data());
        second_.run_on_host(between.data(), apart.data());
        run_on_host(trial.b.data(), both.data());
        const Element element = second_.description().c.element;
        const double epsilon = element == Element::f64 ? 0x1p-52 : 0x1p-23;
        const std::size_t size = bytes_of(element);
        double largest = 0.0, worst = 0.0;
        for (std::size_t at = 0; at + size <= bytes; at += size) {
            const double one = number(element, &apart[at]), distance = std::fabs(one - number(element, &both[at]));
            if (std::isnan(distance)) {
                return std::numeric_limits<double>::infinity();
            }
            largest = std::max(largest, std::fabs(one));
            worst = std::max(worst, distance);
        }
        return worst == 0.0 ? 0.0 : worst / (largest * std::sqrt(std::sqrt(epsilon)));
    }

    // Whether a kernel of either waited too long, as for Plan. Both are asked, since each forgets by being asked.
    bool gave_up() const {
        const bool first = first_.gave_up();
        return second_.gave_up() || first;
    }

private:
    void require_updatable() const {
        first_.require_updatable();
        second_.require_updatable();
    }

    static double number(Element element, const unsigned char* from) {
        return element == Element::f64 ? detail::loaded<double>(from) : detail::loaded<float>(from);
    }

    Plan first_;
    Plan second_;
    // Held while both are queued: else a call of another thread would write what is between them before the second has read it.
    std::mutex mutex_;
    // New values have reached the first plan alone.
    bool torn_ = false;
    detail::Between between_;
};

}  // namespace sparsetune

#endif
