// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PackedSamples` cuts documents of tokens, one after the other, into numbered
// sequences of equal length.

#include "tessera/zoo/data/document_stream.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::zoo {

struct SampleCut {
  int64_t length = 0; ///< tokens of a sequence
  int64_t shared = 0; ///< with the next sequence; less than length
  uint64_t seed = 0; ///< of the orders of sources that are blended
};

/// Sequence i of an epoch begins at token i * (length - shared) of its source.
/// Documents are in another order in each epoch, and in that of the file where
/// they are scored. Tokens that do not fill the last sequence are left out.
///
/// With weights, the samples of an epoch are divided among the sources in
/// proportion to them. A source goes on in the next epoch where it ended, and
/// begins again, in another order, when it is at its end. Everything is a
/// function of seeds, epoch and example.
class PackedSamples {
 public:
  /// @param weights of the sources; empty: all samples of each, which are
  ///     numbered in their order.
  /// @throws tessera::Error naming a source that has less than one sequence, or
  ///     whose weight gives it none.
  PackedSamples(
      std::vector<std::shared_ptr<const DocumentStream>> sources,
      const std::vector<double>& weights,
      const SampleCut& cut);

  size_t size() const {
    return static_cast<size_t>(size_);
  }
  int64_t length() const {
    return cut_.length;
  }
  std::string text() const;
  /// Of an epoch of each source.
  int64_t left_out_tokens() const;

  /// @param tokens length() of them.
  /// @param starts gets the places among them where a document begins, but for
  ///     the first token.
  void read(
      size_t example,
      int64_t epoch,
      std::span<int64_t> tokens,
      std::vector<int64_t>& starts) const;

  /// A sample of a source.
  struct Sample {
    size_t source = 0;
    int64_t epoch = 0; ///< of the source
    int64_t index = 0; ///< in it
  };
  Sample sample(size_t example, int64_t epoch) const;

 private:
  struct Source {
    std::shared_ptr<const DocumentStream> stream;
    int64_t samples = 0; ///< in one epoch of its own
    int64_t share = 0; ///< in one epoch of all
    int64_t begin = 0; ///< of its share among the examples of an epoch
  };
  int64_t samples_of(const DocumentStream& stream) const;
  void set_shares(const std::vector<double>& weights);

  std::vector<Source> sources_;
  SampleCut cut_;
  int64_t size_ = 0;
  bool is_blend_;
};

} // namespace tessera::zoo
