// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/plot_ticks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tessera::engine {

namespace {

// Labels of one axis: all in the same unit, with enough digits to distinguish
// neighbors.
class Labels {
 public:
  Labels(double largest, double step) {
    constexpr double kSmallestFixed = 1e-3;
    constexpr double kLargestFixed = 1e15;
    is_scientific_ = largest < kSmallestFixed || largest >= kLargestFixed;
    if (is_scientific_) {
      digits_ = std::max(1, decimals_of(step / largest) + 1);
      return;
    }
    for (const auto& [unit, suffix] : kUnits) {
      if (largest >= 10 * unit) {
        unit_ = unit;
        suffix_ = suffix;
      }
    }
    digits_ = std::max(0, decimals_of(step / unit_));
  }

  std::string operator()(double value) const {
    if (value == 0) {
      return "0";
    }
    if (is_scientific_) {
      return significant(value, digits_);
    }
    const double scaled = value / unit_;
    return (digits_ == 0 ? grouped(scaled) : fixed(scaled, digits_)) + suffix_;
  }

 private:
  static constexpr std::array<std::pair<double, const char*>, 3> kUnits{
      {{1e6, "M"}, {1e9, "G"}, {1e12, "T"}}};

  // Decimals that show a multiple of `step` exactly; negative from ten up.
  static int decimals_of(double step) {
    return static_cast<int>(-std::floor(std::log10(step) + 1e-9));
  }

  static std::string significant(double value, int digits) {
    std::array<char, 64> text;
    const auto result = std::to_chars(
        text.data(),
        text.data() + text.size(),
        value,
        std::chars_format::general,
        digits);
    return {text.data(), result.ptr};
  }

  double unit_ = 1;
  const char* suffix_ = "";
  int digits_ = 0;
  bool is_scientific_ = false;
};

// The smallest of 1, 2, 5 times a power of ten that is not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  // The slack allows for rounding of the logarithm.
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

} // namespace

std::string fixed(double value, int decimals) {
  std::array<char, 352> text; // The longest double and its decimals.
  const auto result = std::to_chars(
      text.data(),
      text.data() + text.size(),
      value,
      std::chars_format::fixed,
      decimals);
  std::string digits(text.data(), result.ptr);
  const bool is_zero = digits.find_first_not_of("-0.") == std::string::npos;
  return is_zero && digits.front() == '-' ? digits.substr(1) : digits;
}

std::string grouped(double value) {
  std::string digits = fixed(value, 0);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

Ticks make_ticks(double low, double high, int most, bool full) {
  double step = round_step((high - low) / most);
  if (full) {
    step = std::max(step, 1.0);
  }
  const Labels label(std::max(std::abs(low), std::abs(high)), step);
  Ticks ticks;
  // Slack on both ends, so that a tick is not lost to rounding.
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-6));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-6));
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks.values.push_back(value);
    ticks.labels.push_back(label(value));
  }
  return ticks;
}

} // namespace tessera::engine
