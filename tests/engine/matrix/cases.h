// SPDX-License-Identifier: Apache-2.0
#pragma once
// The combinations that training must be right in.

#include "tessera/engine/engine.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::tests {

/// Options of one run, as positions in the lists below.
struct Case {
  enum Dimension : size_t {
    kWorld,
    kResidency,
    kDtype,
    kAccumulation,
    kCheckpointing,
    kVariant,
    kClipping,
    kOverflow,
    kDimensions,
  };
  std::array<size_t, kDimensions> at{};

  static const std::vector<std::vector<std::string>>& values() {
    static const std::vector<std::vector<std::string>> lists = {
        {"1 rank", "2 ranks", "3 ranks", "4 ranks"},
        {"stage 1", "stage 2", "stage 3", "budget", "hybrid"},
        {"float32", "bfloat16", "float16"},
        {"1 micro-batch", "3 micro-batches", "3 micro-batches kept whole"},
        {"plain blocks", "checkpointed blocks"},
        {"all trained", "frozen", "low-rank", "tied", "unused"},
        {"unclipped", "clipped"},
        {"no overflow", "overflow on the last rank"},
    };
    return lists;
  }

  const std::string& operator[](Dimension dimension) const {
    return values()[dimension][at[dimension]];
  }
  bool is(Dimension dimension, const std::string& value) const {
    return (*this)[dimension] == value;
  }
  int world() const {
    return static_cast<int>(at[kWorld]) + 1;
  }
  int micro_batches() const {
    return at[kAccumulation] == 0 ? 1 : 3;
  }
  at::ScalarType dtype() const {
    constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
    return kTypes[at[kDtype]];
  }

  /// Only scaled gradients are looked at for overflow.
  bool is_meaningful() const {
    return at[kOverflow] == 0 || dtype() == at::kHalf;
  }

  std::string name() const {
    std::string text;
    for (size_t d = 0; d < kDimensions; ++d) {
      text += (d == 0 ? "" : ", ") + values()[d][at[d]];
    }
    return text;
  }
};

inline void PrintTo(const Case& which, std::ostream* out) {
  *out << which.name();
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases{Case{}};
  for (size_t d = 0; d < Case::kDimensions; ++d) {
    std::vector<Case> longer;
    for (const Case& begun : cases) {
      for (size_t value = 0; value < Case::values()[d].size(); ++value) {
        longer.push_back(begun);
        longer.back().at[d] = value;
      }
    }
    cases = std::move(longer);
  }
  cases.erase(
      std::remove_if(
          cases.begin(),
          cases.end(),
          [](const Case& which) { return !which.is_meaningful(); }),
      cases.end());
  return cases;
}

/// Few cases in which every two values of different dimensions meet.
inline std::vector<Case> pairwise_cases() {
  using Pair = std::tuple<size_t, size_t, size_t, size_t>;
  const auto pairs_of = [](const Case& which) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < Case::kDimensions; ++a) {
      for (size_t b = a + 1; b < Case::kDimensions; ++b) {
        pairs.emplace_back(a, which.at[a], b, which.at[b]);
      }
    }
    return pairs;
  };
  const auto everything = all_cases();
  std::set<Pair> missing;
  for (const Case& which : everything) {
    for (const Pair& pair : pairs_of(which)) {
      missing.insert(pair);
    }
  }
  std::mt19937 random(1);
  std::vector<Case> chosen;
  while (!missing.empty()) {
    const Case* best = nullptr;
    int best_gain = 0;
    for (int attempt = 0; attempt < 400; ++attempt) {
      const Case& tried = everything[random() % everything.size()];
      int gain = 0;
      for (const Pair& pair : pairs_of(tried)) {
        gain += static_cast<int>(missing.count(pair));
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = &tried;
      }
    }
    if (best == nullptr) {
      continue;
    }
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) {
      missing.erase(pair);
    }
  }
  return chosen;
}

} // namespace tessera::tests
