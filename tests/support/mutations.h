// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts that are cut or garbled. The same ones in every run.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tessera {

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}

  size_t below(size_t bound) {
    return engine_() % bound;
  }
  template <typename Values>
  const auto& of(const Values& values) {
    return values[below(values.size())];
  }
  char byte() {
    return static_cast<char>(below(256));
  }

 private:
  std::mt19937_64 engine_;
};

/// The number at or behind a place becomes another value.
inline void replace_number(std::string& text, size_t at, Numbers& numbers) {
  static const std::vector<std::string> values = {
      "0",
      "-1",
      "3",
      "65536",
      "268435456",
      "4611686018427387904",
      "18446744073709551615",
      "1e300",
      "0.5",
      "null",
      "true",
      "\"x\"",
      "[]",
      "{}"};
  constexpr const char* kDigits = "0123456789";
  const size_t begin = text.find_first_of(kDigits, at);
  if (begin != std::string::npos) {
    const size_t end = text.find_first_not_of(kDigits, begin);
    text.replace(begin, std::min(end, text.size()) - begin, numbers.of(values));
  }
}

/// The text cut, or with a byte, some or a number changed.
inline std::string damaged(std::string text, Numbers& numbers) {
  if (text.empty()) {
    return text;
  }
  const size_t at = numbers.below(text.size());
  switch (numbers.below(8)) {
    case 0:
      text.resize(at);
      break;
    case 1:
      text[at] = numbers.byte();
      break;
    case 2:
      text.insert(
          text.begin() + static_cast<std::ptrdiff_t>(at), numbers.byte());
      break;
    case 3:
      text.erase(at, numbers.below(20));
      break;
    default: // more often than what is no JSON any more
      replace_number(text, at, numbers);
  }
  return text;
}

} // namespace tessera
