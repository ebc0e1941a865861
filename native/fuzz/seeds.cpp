// Writes the first inputs of both fuzz targets: valid streams of every codec, model, rule and type.
#include <cstdio>
#include <filesystem>
#include <string>

#include "fuzz/input.hpp"
#include "tests/coding.hpp"
#include "tests/streams.hpp"

using namespace elbowroom;

namespace {

std::size_t written = 0;

void write_file(const std::filesystem::path& folder, const std::vector<std::uint8_t>& bytes) {
    char name[32];
    std::snprintf(name, sizeof name, "seed-%05zu", written++);
    std::FILE* const file = std::fopen((folder / name).c_str(), "wb");
    if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) {
        std::fprintf(stderr, "cannot write %s\n", (folder / name).c_str());
        std::exit(1);
    }
    std::fclose(file);
}

std::vector<Stream> all_streams() {
    std::vector<Stream> all;
    std::size_t i = 0;
    for (const double limit : {0.01, 0.4})
        for (const Quantiser& q : streams::all_quantisers(limit)) {
            const std::size_t columns[] = {0, 1, 5, 16, 40}, rows[] = {0, 1, 3, 4};
            const auto next = [&] { return ++i; };
            for (const Predictor p : streams::all_predictors) {
                const std::size_t c = columns[next() % 5], r = rows[i % 4];
                all.push_back(streams::block_stream(q, p, c == 0 ? 9 : c, r == 0 ? 2 : r));
            }
            for (int model = 0; model < streams::models; ++model)
                all.push_back(streams::dense_stream(q, model, next() % 2 == 0,
                                                    i % 3 == 0 ? static_cast<int>(i % 7) : 0,
                                                    columns[i % 5], rows[i % 4]));
        }
    return all;
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: %s <folder for decode> <folder for round_trip>\n", words[0]);
        return 2;
    }
    const std::filesystem::path decode_folder = words[1], trip_folder = words[2];
    std::filesystem::create_directories(decode_folder);
    std::filesystem::create_directories(trip_folder);
    values::Random random(1);
    const auto write_decode = [&](const Stream& s, values::Content content, std::size_t items) {
        const auto bytes = values::make_items(s.quantiser.dtype, content, items, random.bits());
        const coding::Encoded encoded = coding::encode(s, bytes.data(), items);
        std::vector<std::uint32_t> sizes;
        for (const ChunkEntry& entry : encoded.directory) sizes.push_back(entry.bytes);
        write_file(decode_folder, fuzz::write_payload(s, items, sizes, encoded.payload));
    };
    const auto write_trip = [&](const Stream& s, values::Content content, std::size_t items) {
        const std::size_t few = std::min<std::size_t>(items, 50);
        const auto bytes = values::make_items(s.quantiser.dtype, content, few, random.bits());
        const auto making = static_cast<fuzz::Making>(random.below(5));
        write_file(trip_folder, fuzz::write_values(s, items, making, random.below(8) == 0, bytes));
    };
    const auto write_both = [&](const Stream& s, values::Content content, std::size_t items) {
        write_decode(s, content, items);
        write_trip(s, content, items);
    };
    for (const Stream& s : all_streams())
        write_both(s, values::some_content(random.bits()), 1 + random.below(260));
    // Rows and planes that fill whole lanes; and more than one chunk, in few bytes.
    for (const Quantiser& q : streams::all_quantisers(0.4)) {
        write_both(streams::dense_stream(q, 4, true, 0, 4, 4), values::Content::wave, 1023);
        write_both(streams::dense_stream(q, 3, false, 0, 9, 0), values::Content::noise, 600);
        for (const std::size_t columns : {0, 6, 70})
            write_both(streams::dense_stream(q, streams::sparse, false, 0, columns, 0),
                       values::Content::rare, 1 + random.below(5000));
        const Stream left = streams::block_stream(q, Predictor::left, 0, 0);
        write_decode(left, values::Content::constant, 65536 + random.below(3000));
        // Encoding so many values takes as long as a hundred other inputs.
        if (random.below(10) == 0) write_trip(left, values::Content::constant, 70000);
    }
    std::printf("fuzz: %zu seeds\n", written);
    return 0;
}
