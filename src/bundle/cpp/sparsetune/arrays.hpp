// The arrays of a plan on the device, and new values in those that hold values of the matrix.
#ifndef SPARSETUNE_ARRAYS_HPP
#define SPARSETUNE_ARRAYS_HPP

#include "check.hpp"
#include "driver.hpp"

#include <memory>

namespace sparsetune {

namespace detail {

// A kernel with what its launches need.
class Kernel {
public:
    Kernel(const Context& context, const Code& code, const char* symbol)
        : driver_(context.driver), function_(code.function(symbol)), symbol_(symbol) {
        // Of CUfunction_attribute and CUdevice_attribute, by the numbers in cuda.h.
        const int max_threads = 0, static_shared = 1, max_dynamic_shared = 8, non_portable_cluster = 14;
        const int shared_opt_in = 97, cluster_launch = 120, capability_major = 75;
        // Drivers of CUDA 12.4 and later also record such launches into graphs.
        int version = 0;
        driver_.check("Asking for the driver's version", driver_.version(&version));
        overlaps_ = version >= 12040 && context.attribute(capability_major) >= 9;
        max_threads_ = fact(max_threads);
        const unsigned fixed = fact(static_shared), most = context.attribute(shared_opt_in);
        most_shared_ = most > fixed ? most - fixed : 0;
        set(max_dynamic_shared, most_shared_);
        if (context.attribute(cluster_launch) != 0) {
            set(non_portable_cluster, 1);
        }
    }

    // Refuses a launch that the kernel or the device does not take.
    void check(const Step& step, const std::vector<std::size_t>& sizes) const {
        unsigned long long threads = 1;
        for (int axis = 0; axis < 3; ++axis) {
            if (step.grid[axis] == 0 || step.block[axis] == 0) {
                refuse("an empty grid or block");
            }
            threads *= step.block[axis];
        }
        if (threads > max_threads_) {
            refuse("blocks of " + std::to_string(threads) + " threads; at most " + std::to_string(max_threads_) + " fit");
        }
        if (step.shared_bytes > most_shared_) {
            refuse("more shared memory than the device has");
        }
        if (step.cluster == 0 || step.grid[0] % step.cluster != 0) {
            refuse("a grid that is no multiple of its clusters");
        }
        if (driver_.parameter_info == nullptr) {
            return;
        }
        std::size_t offset = 0, size = 0;
        for (std::size_t at = 0; at < sizes.size(); ++at) {
            if (driver_.parameter_info(function_, at, &offset, &size) != 0 || size != sizes[at]) {
                refuse("arguments of other sizes than it takes");
            }
        }
        if (driver_.parameter_info(function_, sizes.size(), &offset, &size) == 0) {
            refuse("fewer arguments than it takes");
        }
    }

    void launch(const Step& step, void** arguments, CUstream stream) const {
        int code = 0;
        if (driver_.launch_configured != nullptr) {
            // Clusters are compiled in, so there is no attribute for them.
            LaunchAttribute overlap;
            const LaunchConfig config = {{step.grid[0], step.grid[1], step.grid[2]},
                                         {step.block[0], step.block[1], step.block[2]},
                                         step.shared_bytes,
                                         stream,
                                         &overlap,
                                         step.overlaps && overlaps_ ? 1u : 0u};
            code = driver_.launch_configured(&config, function_, arguments, nullptr);
        } else {
            code = driver_.launch(function_, step.grid[0], step.grid[1], step.grid[2], step.block[0], step.block[1],
                                  step.block[2], step.shared_bytes, stream, arguments, nullptr);
        }
        driver_.check("Launching a kernel", code);
    }

private:
    unsigned fact(int which) const {
        int value = 0;
        driver_.check("Asking for a kernel's attribute", driver_.function_attribute(&value, which, function_));
        return static_cast<unsigned>(value);
    }

    void set(int which, unsigned value) const {
        const int code = driver_.set_function_attribute(function_, which, static_cast<int>(value));
        driver_.check("Setting a kernel's attribute", code);
    }

    [[noreturn]] void refuse(const std::string& why) const {
        throw Error("The plan gives the kernel " + symbol_ + " " + why + ".");
    }

    const Driver& driver_;
    Handle function_;
    std::string symbol_;
    unsigned max_threads_ = 0;
    unsigned most_shared_ = 0;
    bool overlaps_ = false;
};

// A module's machine code or, if the driver refuses it, its text; and one kernel of it for each symbol.
class Kernels {
public:
    Kernels(const Context& context, const File& file, const Module& module, const std::vector<const char*>& symbols,
            std::vector<std::string>& warnings) {
        const unsigned char* cubin = file.at(module.cubin);
        try {
            // The driver takes anything else for text up to the next zero, which there need not be.
            if (module.cubin.bytes < 64 || std::memcmp(cubin, "\x7f" "ELF", 4) != 0) {
                throw Error("Loading the kernels: there is no machine code.");
            }
            load(context, cubin, symbols);
        } catch (const Error& refusal) {
            if (module.ptx.bytes == 0) {
                throw;
            }
            std::string text(reinterpret_cast<const char*>(file.at(module.ptx)), module.ptx.bytes);
            kernels.clear();
            load(context, text.c_str(), symbols);
            warnings.push_back(std::string("The driver compiled the kernels from PTX, since it did not take the machine "
                                           "code: ") +
                               refusal.what());
        }
    }

    std::vector<Kernel> kernels;

private:
    void load(const Context& context, const void* image, const std::vector<const char*>& symbols) {
        code_ = std::make_unique<Code>(context, image);
        for (const char* symbol : symbols) {
            kernels.emplace_back(context, *code_, symbol);
        }
    }

    std::unique_ptr<Code> code_;
};

// Bits of the values in an element type; throws if a value is out of its range.
inline std::vector<unsigned char> rounded(const double* values, std::size_t count, Element type) {
    std::vector<unsigned char> data(count * bytes_of(type));
    for (std::size_t i = 0; i < count; ++i) {
        unsigned char* to = data.data() + i * bytes_of(type);
        bool fits = std::isfinite(values[i]);
        if (type == Element::f16) {
            const std::uint16_t bits = half_bits(values[i]);
            fits = (bits & 0x7c00) != 0x7c00;
            store(to, bits);
        } else if (type == Element::bf16) {
            const std::uint16_t bits = bf16_bits(values[i]);
            fits = (bits & 0x7f80) != 0x7f80;
            store(to, bits);
        } else if (type == Element::f32) {
            fits = fits && std::fabs(values[i]) < std::ldexp(1.0, 128) - std::ldexp(1.0, 103);
            store(to, fits ? static_cast<float>(values[i]) : 0.0f);
        } else {
            store(to, values[i]);
        }
        if (!fits) {
            throw Error("The value of entry " + std::to_string(i) + " is out of the range of the plan's element type.");
        }
    }
    return data;
}

// Refuses arrays of a CSR matrix that a library would read beyond.
inline void require_matrix(const Description& plan, const File& file) {
    const Array *row_ptr = nullptr, *col_idx = nullptr, *values = nullptr;
    for (const Array& array : plan.arrays) {
        const std::string name = array.name;
        row_ptr = name == "row_ptr" ? &array : row_ptr;
        col_idx = name == "col_idx" ? &array : col_idx;
        values = name == "values" ? &array : values;
    }
    if (row_ptr == nullptr || col_idx == nullptr || values == nullptr) {
        throw Error("The plan lacks one of the arrays row_ptr, col_idx and values.");
    }
    bool whole = row_ptr->element == Element::u32 && col_idx->element == Element::u32 &&
                 values->element == plan.b.element && row_ptr->length == plan.c.rows + 1 &&
                 values->length == col_idx->length && row_ptr->included && col_idx->included &&
                 row_ptr->data.bytes / 4 == row_ptr->length && col_idx->data.bytes / 4 == col_idx->length;
    if (whole) {
        const Numbers<std::uint32_t> rows(file, row_ptr->data), cols(file, col_idx->data);
        whole = rows[0] == 0 && rows[plan.c.rows] == col_idx->length;
        for (std::uint64_t row = 0; whole && row < plan.c.rows; ++row) {
            whole = rows[row] <= rows[row + 1];
        }
        for (std::uint64_t at = 0; whole && at < col_idx->length; ++at) {
            whole = cols[at] < plan.b.rows;
        }
    }
    if (!whole) {
        throw Error("The arrays row_ptr, col_idx and values are no matrix of the plan's shape and element type.");
    }
}

class Arrays {
public:
    // Uploads the arrays that `wanted` names.
    Arrays(const Context& context, const File& file, const Description& plan, const std::vector<bool>& wanted,
           std::vector<std::string>& warnings)
        : context_(context), file_(file), plan_(plan) {
        bool maps = false;
        for (std::size_t at = 0; at < plan.arrays.count; ++at) {
            held_.emplace_back();
            if (!wanted[at]) {
                continue;
            }
            const Array& array = plan.arrays[at];
            require_whole(array);
            Held& held = held_.back();
            held.data = std::make_unique<Buffer>(context, array.length * bytes_of(array.element));
            held.filled = array.included;
            if (array.included) {
                held.data->write(file.at(array.data), array.data.bytes, context.stream);
            } else {
                held.data->fill(0, context.stream);
            }
            maps = maps || array.values == Values::by_map || array.values == Values::quotients;
        }
        if (maps && plan.updatable && plan.gather.block != 0) {
            std::vector<const char*> symbols{plan.gather.symbol};
            if (divides()) {
                symbols.push_back(plan.gather.quotients);
            }
            gather_ = std::make_unique<Kernels>(context, file, plan.gather.module, symbols, warnings);
            gather_->kernels[0].check(gather_step(symbols[0], 1), {8, 8, 8, 8});
            if (divides()) {
                gather_->kernels[1].check(gather_step(symbols[1], 1), {8, 8, 8, 8, 8});
            }
            for (std::size_t at = 0; at < held_.size(); ++at) {
                const Array& array = plan.arrays[at];
                if (held_[at].data) {
                    held_[at].map = uploaded(array.map);
                    held_[at].divisors = uploaded(array.divisors);
                }
            }
        }
        if (!plan.updatable) {
            return;
        }
        if (any(Values::quotients) && !(gather_ && divides())) {
            throw Error("The plan has no kernel that divides values, which its arrays need.");
        }
        list_divisors();
    }

    Address address(std::size_t at) const { return held_.at(at).data->address(); }
    const Buffer& buffer(std::size_t at) const { return *held_.at(at).data; }

    // Refuses a call while values that were left out of the bundle are missing.
    void require() const {
        for (std::size_t at = 0; at < held_.size(); ++at) {
            if (held_[at].data && !held_[at].filled) {
                throw Error(std::string("The values in the array ") + plan_.arrays[at].name +
                            " were left out of the bundle: update the values first.");
            }
        }
    }

    bool complete() const {
        for (const Held& held : held_) {
            if (held.data && !held.filled) {
                return false;
            }
        }
        return true;
    }

    // Whether values must pass through the host.
    bool gathers_on_host() const { return !gather_ && any(Values::by_map); }

    // New values as they would be put in place; refuses what cannot be.
    std::vector<unsigned char> accepted(const double* values, std::size_t count) const {
        require_updatable();
        if (count != plan_.entries) {
            throw Error(std::to_string(count) + " values were given for a matrix of " + std::to_string(plan_.entries) +
                        " entries.");
        }
        std::vector<unsigned char> data = rounded(values, count, plan_.b.element);
        if (!divisors_.empty()) {
            require_quotients(data);
        }
        return data;
    }

    void update_from_host(const double* values, std::size_t count, CUstream stream) {
        write(accepted(values, count), stream);
    }

    void update_on_device(Address values, CUstream stream) {
        require_updatable();
        const std::size_t bytes = plan_.entries * bytes_of(plan_.b.element);
        const Driver& driver = context_.driver;
        if (gathers_on_host()) {
            std::vector<unsigned char> data(bytes);
            driver.check("Copying from the device", driver.to_host(data.data(), values, bytes, stream));
            driver.check("Kernel execution", driver.stream_synchronize(stream));
            write(data, stream);
            return;
        }
        // Nobody has compared them.
        say_equal(false, stream);
        place(values, bytes, stream);
    }

private:
    // Refuses an array whose bytes, or those of its map, are not those of its elements, and a map of other entries.
    void require_whole(const Array& array) const {
        const std::size_t size = bytes_of(array.element);
        const std::uint64_t most = ~std::uint64_t{0} / 8;
        bool whole = array.length <= most && (!array.included || array.data.bytes == array.length * size);
        if (array.values != Values::none) {
            // Words may hold columns and values of binary32 alike.
            whole = whole && (array.element == plan_.b.element ||
                              (array.element == Element::u32 && plan_.b.element == Element::f32));
        }
        whole = whole && (array.values != Values::in_order || array.length == plan_.entries);
        const bool divides = array.values == Values::quotients;
        if (array.values == Values::by_map || divides) {
            whole = whole && whole_map(array, array.map, divides);
        }
        whole = whole && (!array.equality || (array.element == Element::u32 && array.length == 1 && array.included && array.values == Values::none));
        if (divides) {
            whole = whole && whole_map(array, array.divisors, false) && array.element == plan_.b.element &&
                    (array.element == Element::f32 || array.element == Element::f64);
        }
        if (!whole) {
            throw Error(std::string("The array ") + array.name + " has another length or element type than the plan reads.");
        }
    }

    static bool equal(const std::vector<unsigned char>& data, std::size_t size) {
        return !data.empty() && std::equal(data.begin() + static_cast<std::ptrdiff_t>(size), data.end(), data.begin());
    }

    // Sets the word that says whether all values are equal, where there is one. Before values change it says no, in case only some
    // of them do.
    void say_equal(bool equal, CUstream stream) {
        for (std::size_t at = 0; at < held_.size(); ++at) {
            if (held_[at].data && plan_.arrays[at].equality) {
                held_[at].data->fill(equal ? 1 : 0, stream);
            }
        }
    }

    bool whole_map(const Array& array, const Place& place, bool may_be_one) const {
        if (place.bytes != array.length * 4) {
            return false;
        }
        const Numbers<std::uint32_t> map(file_, place);
        for (std::uint64_t i = 0; i < array.length; ++i) {
            const std::uint32_t entry = map[i];
            if (!(entry < plan_.entries || entry == 0xffffffffu || (may_be_one && entry == 0xfffffffeu))) {
                return false;
            }
        }
        return true;
    }

    // A place of the file in device memory; none if it is empty.
    std::unique_ptr<Buffer> uploaded(const Place& place) const {
        if (place.bytes == 0) {
            return nullptr;
        }
        auto buffer = std::make_unique<Buffer>(context_, place.bytes);
        buffer->write(file_.at(place), place.bytes, context_.stream);
        return buffer;
    }

    // Refuses values whose quotients are not finite in the type.
    void require_quotients(const std::vector<unsigned char>& data) const {
        const bool single = plan_.b.element == Element::f32;
        const auto value = [&](std::uint32_t entry) {
            return single ? static_cast<double>(loaded<float>(data.data() + entry * 4)) : loaded<double>(data.data() + entry * 8);
        };
        const auto fits = [&](double quotient) {
            return single ? std::isfinite(static_cast<float>(quotient)) : std::isfinite(quotient);
        };
        for (const std::uint32_t entry : divisors_) {
            if (value(entry) == 0.0) {
                throw Error("The value of entry " + std::to_string(entry) +
                            ", which is on the diagonal, is zero in the plan's element type.");
            }
        }
        for (std::size_t at = 0; at < held_.size(); ++at) {
            const Array& array = plan_.arrays[at];
            if (!held_[at].data || array.values != Values::quotients) {
                continue;
            }
            const Numbers<std::uint32_t> map(file_, array.map), divisors(file_, array.divisors);
            for (std::uint64_t i = 0; i < array.length; ++i) {
                const std::uint32_t above = map[i], below = divisors[i];
                if (above == 0xffffffffu || below == 0xffffffffu) {
                    continue;
                }
                if (!fits((above == 0xfffffffeu ? 1.0 : value(above)) / value(below))) {
                    throw Error("A coefficient, divided by the value of entry " + std::to_string(below) +
                                ", which is on its row's diagonal, is beyond the range of the plan's element type.");
                }
            }
        }
    }

    bool divides() const { return plan_.gather.quotients[0] != '\0'; }

    // The entries that others are divided by, each once.
    void list_divisors() {
        std::vector<bool> listed(plan_.entries, false);
        for (std::size_t at = 0; at < held_.size(); ++at) {
            if (!held_[at].data || plan_.arrays[at].values != Values::quotients) {
                continue;
            }
            const Numbers<std::uint32_t> map(file_, plan_.arrays[at].divisors);
            for (std::uint64_t i = 0; i < plan_.arrays[at].length; ++i) {
                const std::uint32_t entry = map[i];
                if (entry < plan_.entries && !listed[entry]) {
                    listed[entry] = true;
                    divisors_.push_back(entry);
                }
            }
        }
    }

    struct Held {
        std::unique_ptr<Buffer> data;
        std::unique_ptr<Buffer> map;
        std::unique_ptr<Buffer> divisors;
        bool filled = false;
    };

    bool any(Values kind) const {
        for (std::size_t at = 0; at < held_.size(); ++at) {
            if (held_[at].data && plan_.arrays[at].values == kind) {
                return true;
            }
        }
        return false;
    }

    void require_updatable() const {
        if (!plan_.updatable) {
            throw Error("The arrays of this plan are functions of all values: sparsetune makes them again.");
        }
    }

    Step gather_step(const char* symbol, std::uint64_t places) const {
        const unsigned block = plan_.gather.block;
        return {symbol, {static_cast<unsigned>((places + block - 1) / block), 1, 1}, {block, 1, 1}, 1, 0,
                false, {nullptr, 0}};
    }

    // From values on the device, in the order of the entries.
    void place(Address values, std::size_t bytes, CUstream stream) {
        for (std::size_t at = 0; at < held_.size(); ++at) {
            Held& held = held_[at];
            const Array& array = plan_.arrays[at];
            if (!held.data || array.values == Values::none) {
                continue;
            }
            if (array.values == Values::in_order) {
                if (bytes > 0) {
                    const int code = context_.driver.on_device(held.data->address(), values, bytes, stream);
                    context_.driver.check("Copying on the device", code);
                }
            } else if (array.length > 0 && array.values == Values::quotients) {
                std::uint64_t words[5] = {values, held.map->address(), held.divisors->address(), held.data->address(),
                                          array.length};
                void* arguments[5] = {&words[0], &words[1], &words[2], &words[3], &words[4]};
                gather_->kernels[1].launch(gather_step(plan_.gather.quotients, array.length), arguments, stream);
            } else if (array.length > 0) {
                std::uint64_t words[4] = {values, held.map->address(), held.data->address(), array.length};
                void* arguments[4] = {&words[0], &words[1], &words[2], &words[3]};
                gather_->kernels[0].launch(gather_step(plan_.gather.symbol, array.length), arguments, stream);
            }
            held.filled = true;
        }
    }

    // From values on the host, in the order of the entries.
    void write(const std::vector<unsigned char>& data, CUstream stream) {
        const std::size_t size = bytes_of(plan_.b.element);
        say_equal(false, stream);
        if (gather_) {
            if (!staged_) {
                staged_ = std::make_unique<Buffer>(context_, data.size());
            }
            staged_->write(data.data(), data.size(), stream);
            place(staged_->address(), data.size(), stream);
            say_equal(equal(data, size), stream);
            return;
        }
        for (std::size_t at = 0; at < held_.size(); ++at) {
            Held& held = held_[at];
            const Array& array = plan_.arrays[at];
            if (!held.data || array.values == Values::none) {
                continue;
            }
            if (array.values == Values::in_order) {
                held.data->write(data.data(), data.size(), stream);
            } else {
                const Numbers<std::uint32_t> map(file_, array.map);
                // What stands where there is no value stays.
                std::vector<unsigned char> packed(array.length * size, 0);
                if (array.included) {
                    std::memcpy(packed.data(), file_.at(array.data), packed.size());
                }
                for (std::uint64_t i = 0; i < array.length; ++i) {
                    if (map[i] < plan_.entries) {
                        std::memcpy(packed.data() + i * size, data.data() + map[i] * size, size);
                    }
                }
                held.data->write(packed.data(), packed.size(), stream);
            }
            held.filled = true;
        }
        say_equal(equal(data, size), stream);
    }

    const Context& context_;
    const File& file_;
    const Description& plan_;
    std::vector<Held> held_;
    std::unique_ptr<Kernels> gather_;
    std::unique_ptr<Buffer> staged_;
    std::vector<std::uint32_t> divisors_;
};

}  // namespace detail

}  // namespace sparsetune

#endif
