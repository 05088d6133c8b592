// The bundle's file in memory, and its hashes.
#ifndef SPARSETUNE_FILE_HPP
#define SPARSETUNE_FILE_HPP

#include "description.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sparsetune {

namespace detail {

// FIPS 180-4.
class Sha256 {
public:
    void add(const unsigned char* data, std::size_t bytes) {
        total_ += bytes;
        while (bytes > 0) {
            if (held_ == 0 && bytes >= block_.size()) {
                compress(data);
                data += block_.size();
                bytes -= block_.size();
                continue;
            }
            const std::size_t room = block_.size() - held_;
            const std::size_t taken = bytes < room ? bytes : room;
            std::memcpy(block_.data() + held_, data, taken);
            held_ += taken;
            data += taken;
            bytes -= taken;
            if (held_ == block_.size()) {
                compress(block_.data());
                held_ = 0;
            }
        }
    }

    std::string hex() {
        const std::uint64_t bits = total_ * 8;
        const unsigned char one = 0x80, zero = 0;
        add(&one, 1);
        while (held_ != 56) {
            add(&zero, 1);
        }
        unsigned char length[8];
        for (int i = 0; i < 8; ++i) {
            length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
        }
        add(length, sizeof length);
        std::string text;
        for (const std::uint32_t word : state_) {
            for (int shift = 28; shift >= 0; shift -= 4) {
                text += "0123456789abcdef"[word >> shift & 15];
            }
        }
        return text;
    }

private:
    static std::uint32_t rotated(std::uint32_t word, int by) { return word >> by | word << (32 - by); }

    void compress(const unsigned char* block) {
        static const std::uint32_t constants[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            w[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 | static_cast<std::uint32_t>(block[4 * i + 1]) << 16 |
                   static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
        }
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
                   (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
        }
        std::array<std::uint32_t, 8> s = state_;
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t first = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                                        ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
            const std::uint32_t second = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) +
                                         ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
        }
        for (int i = 0; i < 8; ++i) {
            state_[i] += s[i];
        }
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<unsigned char, 64> block_ = {};
    std::size_t held_ = 0;
    std::uint64_t total_ = 0;
};

inline std::string sha256(const void* data, std::size_t bytes) {
    Sha256 hash;
    hash.add(static_cast<const unsigned char*>(data), bytes);
    return hash.hex();
}

// The file, mapped for reading.
class File {
public:
    explicit File(const std::string& path) : path_(path) {
        const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat facts = {};
        if (descriptor < 0 || ::fstat(descriptor, &facts) != 0) {
            const std::string reason = std::strerror(errno);
            if (descriptor >= 0) {
                ::close(descriptor);
            }
            throw Error("The bundle " + path + " cannot be read: " + reason + ".");
        }
        bytes_ = static_cast<std::size_t>(facts.st_size);
        void* data = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
        ::close(descriptor);
        if (data == MAP_FAILED || data == nullptr) {
            throw Error("The bundle " + path + " cannot be read.");
        }
        data_ = static_cast<const unsigned char*>(data);
    }

    File(const File&) = delete;
    File& operator=(const File&) = delete;

    ~File() { ::munmap(const_cast<unsigned char*>(data_), bytes_); }

    const std::string& path() const { return path_; }

    const unsigned char* at(Place place) const {
        if (place.offset > bytes_ || place.bytes > bytes_ - place.offset) {
            throw Error("The bundle " + path_ + " is shorter than plan.hpp says.");
        }
        return data_ + place.offset;
    }

    // Compares every member with its hash in plan.hpp.
    void verify(const Description& description) const {
        for (const Member& member : description.members) {
            if (sha256(at(member.place), member.place.bytes) != member.sha256) {
                throw Error("The bundle " + path_ + " is damaged or is not the one of plan.hpp: " + member.path +
                            " has another hash.");
            }
        }
    }

private:
    std::string path_;
    const unsigned char* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace detail

}  // namespace sparsetune

#endif
