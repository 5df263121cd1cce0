// SPDX-License-Identifier: Apache-2.0
// Beams that are drawn, against the chances of all their outcomes, which are
// added up in float64 over all draws. generation_test has transformers'.
#include "tessera/zoo/generation/beam_search.h"

#include "support/chi_square.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

namespace tessera::zoo::beam_search_test {
namespace {

using Sequence = std::vector<int64_t>;

constexpr int64_t kVocab = 5;
constexpr int64_t kEnd = 0;
constexpr int64_t kPadding = 4;
constexpr int64_t kPrompt = 3;
constexpr double kTemperature = 1.3;
constexpr double kLengthPenalty = 0.7;
constexpr size_t kBeams = 2;
constexpr size_t kCandidates = 4; // enough that 2 do not end

/// The logits of what follows each token.
at::Tensor following() {
  return torch::tensor(
      {{0.3, -0.2, 0.9, 0.0, 0.1},
       {1.1, 0.4, -0.6, 0.2, 0.0},
       {-0.3, 0.8, 0.1, 0.7, -0.9},
       {0.6, 0.5, 0.9, -0.4, 0.2},
       {0.0, -1.0, 0.3, 0.4, 0.5}});
}

struct Beam {
  double score = 0;
  Sequence tokens;
};

/// Continuations of beams by one token.
std::vector<Beam> continuations(const std::vector<Beam>& beams) {
  const at::Tensor table =
      following().to(at::kDouble).log_softmax(1) / kTemperature;
  std::vector<Beam> all;
  for (const Beam& beam : beams) {
    for (int64_t token = 0; token < kVocab; ++token) {
      Beam next = beam;
      next.score += table[beam.tokens.back()][token].item<double>();
      next.tokens.push_back(token);
      all.push_back(std::move(next));
    }
  }
  return all;
}

/// Calls `use` with each way to draw `count` of them, one after the other, and
/// its chance.
void for_each_draw(
    const std::vector<Beam>& all,
    size_t count,
    const std::function<void(const std::vector<Beam>&, double)>& use) {
  std::vector<Beam> drawn;
  std::vector<bool> is_drawn(all.size());
  const std::function<void(double)> go_on = [&](double chance) {
    if (drawn.size() == count) {
      use(drawn, chance);
      return;
    }
    double sum = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      sum += is_drawn[i] ? 0 : std::exp(all[i].score);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      if (!is_drawn[i]) {
        is_drawn[i] = true;
        drawn.push_back(all[i]);
        go_on(chance * std::exp(all[i].score) / sum);
        drawn.pop_back();
        is_drawn[i] = false;
      }
    }
  };
  go_on(1);
}

bool is_better(const Beam& a, const Beam& b) {
  return a.score > b.score;
}

/// Adds an ended sequence of `count` new tokens.
void set_aside(std::vector<Beam>& ended, Beam beam, int64_t count) {
  beam.score /= std::pow(static_cast<double>(count), kLengthPenalty);
  beam.tokens.resize(3, kPadding);
  ended.push_back(std::move(beam));
}

/// Both beams that two new tokens end with, and their chance.
std::map<std::vector<Sequence>, double> chances() {
  std::map<std::vector<Sequence>, double> result;
  for_each_draw(
      continuations({{0, {kPrompt}}}),
      kCandidates,
      [&](const std::vector<Beam>& first, double chance) {
        std::vector<Beam> ended;
        std::vector<Beam> going_on;
        for (size_t i = 0; i < first.size(); ++i) {
          if (first[i].tokens.back() != kEnd) {
            going_on.push_back(first[i]);
          } else if (i < kBeams) { // ends count among the first draws only
            set_aside(ended, first[i], 1);
          }
        }
        std::sort(going_on.begin(), going_on.end(), is_better);
        going_on.resize(kBeams);
        for_each_draw(
            continuations(going_on),
            kBeams,
            [&](const std::vector<Beam>& second, double and_then) {
              std::vector<Beam> all = ended;
              for (const Beam& beam : second) {
                set_aside(all, beam, 2);
              }
              std::sort(all.begin(), all.end(), is_better);
              result[{all[0].tokens, all[1].tokens}] += chance * and_then;
            });
      });
  return result;
}

} // namespace

TEST(BeamSearch, DrawsByTheChancesOfAllDraws) {
  constexpr int64_t kDraws = 20'000; // prompts of one batch
  GenerateOptions options;
  options.do_sample = true;
  options.top_k = 0;
  options.temperature = kTemperature;
  options.num_beams = kBeams;
  options.num_return_sequences = kBeams;
  options.length_penalty = kLengthPenalty;
  options.max_new_tokens = 2;
  options.eos_token_id = {kEnd};
  options.pad_token_id = kPadding;
  options.seed = 5;
  BeamSearch search(
      options, torch::full({kDraws * 2, 1}, kPrompt, torch::kLong), {});
  while (!search.is_done()) {
    const at::Tensor last = search.rows().select(1, -1);
    search.advance(search.propose(following().index_select(0, last)));
  }
  const at::Tensor rows = search.result().contiguous();
  ASSERT_EQ(rows.size(1), 3);
  std::map<std::vector<Sequence>, int64_t> counts;
  for (int64_t i = 0; i < kDraws; ++i) {
    std::vector<Sequence> pair;
    for (int64_t beam = 0; beam < 2; ++beam) {
      const int64_t* row = rows[2 * i + beam].const_data_ptr<int64_t>();
      pair.emplace_back(row, row + 3);
    }
    ++counts[pair];
  }
  const auto expected = chances();
  double sum = 0;
  for (const auto& [pair, chance] : expected) {
    sum += chance;
  }
  ASSERT_NEAR(sum, 1, 1e-9);
  ASSERT_GT(expected.size(), 100U);
  tests::expect_drawn(expected, counts, "pairs of beams");
}

} // namespace tessera::zoo::beam_search_test
