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
    // the stream is being captured, both become part of the graph.
    void operator()(const void* b, void* x, CUstream stream = nullptr) {
        first_(b, between_.address(), stream);
        second_(between_.address(), x, stream);
    }

    // New values for both: all of the matrix, once, as for Plan. If the second refuses what the first has taken, this throws, and
    // values have to be given again before the next call.
    void update_values(const double* values, std::size_t count, CUstream stream = nullptr) {
        first_.update_values(values, count, stream);
        second_.update_values(values, count, stream);
    }

    // The same in device memory, in the plans' element type.
    void update_values_on_device(const void* values, CUstream stream = nullptr) {
        first_.update_values_on_device(values, stream);
        second_.update_values_on_device(values, stream);
    }

    // Whether a kernel of either waited too long, as for Plan. Both are asked, since each forgets by being asked.
    bool gave_up() const {
        const bool first = first_.gave_up();
        return second_.gave_up() || first;
    }

private:
    Plan first_;
    Plan second_;
    detail::Between between_;
};

}  // namespace sparsetune

#endif
