#include "codec/choose.hpp"

#include "check.hpp"
#include "codec/recipe.hpp"
#include "round_trip.hpp"

using namespace elbowroom;

namespace {

constexpr std::size_t sizes[] = {0, 1, 3, 65, 1000, 9000, 100000};

struct Shape {
    std::size_t columns, rows;
};
constexpr Shape shapes[] = {{0, 0},    {1, 1},       {3, 3},      {64, 9},
                            {129, 77}, {5000, 2},    {100000, 1}, {4294967295u, 4294967295u},
                            {2, 0},    {1000, 1000}, {300, 0}};

}  // namespace

TEST(choices_stay_inside_the_array_and_are_valid) {
    std::uint64_t seed = 0;
    const std::vector<Quantiser> quantisers = streams::all_quantisers(0.02);
    for (const Shape& shape : shapes)
        for (const std::size_t items : sizes)
            for (const bool dense : {false, true}) {
                const Quantiser& q = quantisers[++seed * 7 % quantisers.size()];
                Stream s =
                    dense ? streams::dense_stream(q, 1, false, 0, shape.columns, shape.rows)
                          : streams::block_stream(q, Predictor::none, shape.columns, shape.rows);
                const auto bytes =
                    values::make_items(q.dtype, values::some_content(seed), items, seed);
                const coding::Guarded source(bytes.data(), bytes.size());
                Stream first = s;
                for (const Isa isa : coding::all_levels()) {
                    const coding::AtLevel level(isa);
                    Stream chosen = s;
                    CHECK(choose(chosen, source.data(), items));
                    std::uint8_t recipe[recipe_bytes], other[recipe_bytes];
                    write_recipe(chosen, recipe);
                    Stream again;
                    CHECK(read_recipe(recipe, recipe_bytes, again));
                    CHECK(chosen.geometry.columns == shape.columns);
                    CHECK(chosen.geometry.rows == shape.rows);
                    // The level of this machine must not show in the bytes.
                    if (isa == Isa::scalar) first = chosen;
                    write_recipe(first, other);
                    CHECK(std::memcmp(recipe, other, recipe_bytes) == 0);
                }
                if (items <= 9000) CHECK(round_trip::holds(first, bytes.data(), items));
            }
}

TEST(sparse_is_chosen_for_what_is_nearly_all_zero) {
    const Quantiser q = streams::make_quantiser(Dtype::f32, Rule::plain, 0.01, false);
    const std::size_t items = 400000;
    std::vector<float> x(items);
    values::Random random(3);
    const auto model = [&](std::size_t columns) {
        // What was chosen before must not shine through.
        Stream s = streams::dense_stream(q, 5, true, 3, columns, 0);
        CHECK(choose(s, x.data(), items));
        std::uint8_t recipe[recipe_bytes];
        write_recipe(s, recipe);
        Stream again;
        CHECK(read_recipe(recipe, recipe_bytes, again));
        return s.geometry.model;
    };
    for (const std::size_t columns : {0, 40, 1000}) CHECK(model(columns) == streams::sparse);
    for (float& v : x)
        if (random.below(1000) == 0) v = static_cast<float>(random.bell()) / 20;
    for (const std::size_t columns : {0, 40, 1000}) CHECK(model(columns) == streams::sparse);
    for (float& v : x) v = static_cast<float>(random.bell());
    for (const std::size_t columns : {0, 40, 1000}) CHECK(model(columns) != streams::sparse);
}

TEST(samples_find_the_largest_and_negative_zeros) {
    for (const Dtype d : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64}) {
        std::vector<std::uint8_t> bytes(50 * item_bytes(d));
        for (std::size_t i = 0; i < 50; ++i)
            values::put_number(d, i % 2 == 0 ? -3.5 : 2.0, bytes.data() + i * item_bytes(d));
        values::put_number(d, HUGE_VAL, bytes.data());
        const coding::Guarded source(bytes.data(), bytes.size());
        CHECK(sample(d, source.data(), 50).largest == 3.5);
        CHECK(!sample(d, source.data(), 50).negative_zero);
        values::put_number(d, -0.0, source.data());
        CHECK(sample(d, source.data(), 50).negative_zero);
        CHECK(sample(d, source.data(), 0).largest == 0);
    }
}
