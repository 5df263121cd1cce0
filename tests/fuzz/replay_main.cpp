// SPDX-License-Identifier: Apache-2.0
// Feeds a parser with its seeds and fixed changes of them:
// fuzz_replay TARGET MUTATIONS LIST_OF_FILES, or fuzz_replay TARGET 0 FILE...
// for single inputs.

#include "fuzz/fuzz_target.h"
#include "support/mutations.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

namespace tessera {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TESSERA_CHECK(file.is_open(), "cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The mutation in which something was wrong is left as a file.
void feed_changed(FuzzTarget feed, const std::string& seed, int mutations) {
  const std::string original = content_of(seed);
  feed(original);
  Numbers numbers(original.size());
  std::string text;
  try {
    for (int i = 0; i < mutations; ++i) {
      // Often several changes, one behind the other.
      text = damaged(i % 4 == 0 ? original : text, numbers);
      feed(text);
    }
  } catch (...) {
    std::ofstream("failing_input", std::ios::binary) << text;
    std::fprintf(
        stderr, "of %s; the input is in ./failing_input\n", seed.c_str());
    throw;
  }
}

int replay(const std::vector<std::string>& arguments) {
  TESSERA_CHECK(
      arguments.size() >= 3, "give TARGET MUTATIONS LIST, or TARGET 0 FILE...");
  const auto found = fuzz_targets().find(arguments[0]);
  TESSERA_CHECK(
      found != fuzz_targets().end(), "there is no target {}", arguments[0]);
  const FuzzTarget feed = found->second;
  const int mutations = std::stoi(arguments[1]);
  if (mutations == 0) {
    for (size_t i = 2; i < arguments.size(); ++i) {
      feed(content_of(arguments[i]));
    }
    return 0;
  }
  std::ifstream list(arguments[2]);
  int seeds = 0;
  for (std::string seed; std::getline(list, seed);) {
    feed_changed(feed, seed, mutations);
    ++seeds;
  }
  TESSERA_CHECK(seeds > 0, "{} names no seeds", arguments[2]);
  return 0;
}

} // namespace
} // namespace tessera

int main(int argc, char** argv) {
  return tessera::replay({argv + 1, argv + argc});
}
