// Runs a fuzz target without libFuzzer: random changes of a corpus, the same ones every time.
//
// It takes the options of libFuzzer that run.sh uses and logs in the same words, so that a summary
// of one is a summary of the other. There is no feedback: inputs are kept by chance.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/values.hpp"

#if defined(__has_include)
#if __has_include(<sanitizer/common_interface_defs.h>)
#include <sanitizer/common_interface_defs.h>
#define ELBOWROOM_DEATH_CALLBACK 1
#endif
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed);

namespace {

using Input = std::vector<std::uint8_t>;

values::Random& chance() {
    static values::Random random(1);
    return random;
}

// Written to a file when the target dies.
Input current;
std::string artifact_prefix = "./";

void save_current() {
    const std::string path = artifact_prefix + "crash-" + std::to_string(std::size(current)) + "-" +
                             std::to_string(chance().bits() % 1000000);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(current.data()),
               static_cast<std::streamsize>(current.size()));
    std::fprintf(stderr, "Test unit written to %s\n", path.c_str());
}

std::vector<Input> corpus;

}  // namespace

// Blind changes, as libFuzzer's own: bits, bytes, numbers, copies, insertions, removals.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
    values::Random& random = chance();
    if (size == 0) {
        if (most == 0) return 0;
        data[0] = static_cast<std::uint8_t>(random.bits());
        return 1;
    }
    const std::size_t at = random.below(size);
    switch (random.below(8)) {
        case 0:
            data[at] ^= static_cast<std::uint8_t>(1u << random.below(8));
            return size;
        case 1:
            data[at] = static_cast<std::uint8_t>(random.bits());
            return size;
        case 2: {
            constexpr std::uint32_t some[] = {0, 1, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, 64};
            const std::uint32_t v = some[random.below(7)];
            std::memcpy(data + at, &v, std::min<std::size_t>(4, size - at));
            return size;
        }
        case 3:
            data[at] = static_cast<std::uint8_t>(data[at] + random.below(9) - 4);
            return size;
        case 4: {
            const std::size_t from = random.below(size);
            std::memmove(data + at, data + from,
                         random.below(std::min(size - at, size - from) + 1));
            return size;
        }
        case 5: {
            const Input& other = corpus[random.below(corpus.size())];
            if (other.empty()) return size;
            const std::size_t from = random.below(other.size());
            std::memcpy(data + at, other.data() + from,
                        random.below(std::min(size - at, other.size() - from) + 1));
            return size;
        }
        case 6: {
            const std::size_t more = std::min(random.below(32) + 1, most - size);
            std::memmove(data + at + more, data + at, size - at);
            for (std::size_t i = 0; i < more; ++i)
                data[at + i] = static_cast<std::uint8_t>(random.bits());
            return size + more;
        }
        default: {
            const std::size_t less = random.below(std::min<std::size_t>(size - at, 32) + 1);
            std::memmove(data + at, data + at + less, size - at - less);
            return size - less;
        }
    }
}

int main(int count, char** words) {
    std::size_t runs = 0, most = 4096;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const std::size_t equals = word.find('=');
        const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
        if (word.starts_with("-runs="))
            runs = std::stoull(value);
        else if (word.starts_with("-max_len="))
            most = std::stoull(value);
        else if (word.starts_with("-seed="))
            chance() = values::Random(std::stoull(value));
        else if (word.starts_with("-artifact_prefix="))
            artifact_prefix = value;
        else if (word[0] != '-') {
            std::vector<std::filesystem::path> files;
            if (std::filesystem::is_directory(word))
                for (const auto& entry : std::filesystem::directory_iterator(word))
                    files.push_back(entry.path());
            else
                files.emplace_back(word);
            std::sort(files.begin(), files.end());
            for (const auto& path : files) {
                std::ifstream file(path, std::ios::binary);
                corpus.emplace_back(std::istreambuf_iterator<char>(file),
                                    std::istreambuf_iterator<char>());
            }
        }
    }
    if (corpus.empty()) corpus.emplace_back();
#if defined(ELBOWROOM_DEATH_CALLBACK)
    __sanitizer_set_death_callback(save_current);
#endif
    const auto start = std::chrono::steady_clock::now();
    std::size_t done = 0;
    for (const Input& input : corpus) {
        current = input;
        LLVMFuzzerTestOneInput(current.data(), current.size());
        ++done;
    }
    Input room(most);
    for (; done < runs; ++done) {
        values::Random& random = chance();
        const Input& from = corpus[random.below(corpus.size())];
        std::size_t size = std::min(from.size(), most);
        std::copy_n(from.begin(), size, room.begin());
        for (std::size_t i = 1 + random.below(4); i > 0; --i)
            size = LLVMFuzzerCustomMutator(room.data(), size, most,
                                           static_cast<unsigned>(random.bits()));
        current.assign(room.begin(), room.begin() + static_cast<long>(size));
        LLVMFuzzerTestOneInput(current.data(), current.size());
        // Steps away from the seeds add up.
        if (random.below(64) == 0) corpus[random.below(corpus.size())] = current;
        if ((done & (done - 1)) == 0 && done >= 4096) std::fprintf(stderr, "#%zu\tpulse\n", done);
    }
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start)
            .count();
    std::fprintf(stderr, "Done %zu runs in %lld second(s)\n", done,
                 static_cast<long long>(seconds));
    std::fprintf(stderr, "stat::number_of_executed_units: %zu\n", done);
    return 0;
}
