// SPDX-License-Identifier: Apache-2.0
// One side of benchmarks/peers/tokenizers_speed.py: bench_tokenizer TOKENIZER
// TEXTS prints the seconds that one thread takes to encode the texts of a JSON
// list with the places of tokens, without them, and to decode the ids; and the
// ids of each text.

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

/// @return what `work` returns, and its seconds in `seconds`.
template <typename Work>
auto timed(double& seconds, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = work();
  seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return result;
}

} // namespace

int main(int argc, char** argv) {
  namespace text = tessera::text;
  if (argc != 3) {
    std::fputs("usage: bench_tokenizer TOKENIZER TEXTS\n", stderr);
    return 2;
  }
  const auto tokenizer = text::Tokenizer::from_file(argv[1]);
  const auto texts = tessera::runtime::parse_json(
                         tessera::runtime::read_text_file(argv[2]), argv[2])
                         .get<std::vector<std::string>>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  double with_offsets = 0;
  double fast = 0;
  double decoding = 0;
  timed(with_offsets, [&] {
    return tokenizer.encode_batch(views, {.with_offsets = true}, 1);
  });
  const auto encoded =
      timed(fast, [&] { return tokenizer.encode_batch(views, {}, 1); });
  nlohmann::json ids = nlohmann::json::array();
  std::vector<std::vector<int64_t>> rows;
  for (const text::Encoding& one : encoded) {
    rows.push_back(one.ids());
    ids.push_back(rows.back());
  }
  const size_t characters = timed(decoding, [&] {
    size_t sum = 0;
    for (const auto& row : rows) {
      sum += tokenizer.decode(row, /*skip_special_tokens=*/true).size();
    }
    return sum;
  });
  std::printf(
      "%s\n",
      nlohmann::json{
          {"with_offsets", with_offsets},
          {"fast", fast},
          {"decoding", decoding},
          {"characters", characters},
          {"ids", ids}}
          .dump()
          .c_str());
  return 0;
}
