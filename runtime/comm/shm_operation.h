// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives as turns of the ring: what a rank shows and what it takes.

#include "tessera/runtime/comm/shm_peers.h"
#include "tessera/runtime/comm/shm_reduce.h"
#include "tessera/runtime/comm/shm_region.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// [begin, end) of a buffer, in bytes.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const {
    return end - begin;
  }
};

/// A buffer of `numel` elements divided over `ranks` in order, the last ones
/// maybe shorter; as bytes.
std::vector<ByteSpan> even_spans(int64_t numel, int64_t itemsize, int ranks);

/// A rank's view of the region while it carries out an operation.
struct ShmPort {
  const ShmRegion& region;
  const ShmPeers& peers;
  int rank;
  int ranks;
};

/// One collective. What it shows lies either in the payloads, piece by piece
/// with a turn for each (staged), or in this process's memory, in one turn
/// (direct). A staged operation is over for a rank when it has taken everything
/// from its peers; a direct one when they have taken everything from it, too.
class ShmOperation {
 public:
  virtual ~ShmOperation() = default;
  ShmOperation(const ShmOperation&) = delete;
  ShmOperation& operator=(const ShmOperation&) = delete;

  /// Shows piece `piece` in turn `turn`.
  virtual void publish(const ShmPort& port, uint64_t turn, uint64_t piece) = 0;

  /// Takes what all peers show in turn `turn`.
  /// @throws tessera::Error when a peer shows another operation.
  virtual void consume(const ShmPort& port, uint64_t turn, uint64_t piece) = 0;

  uint64_t pieces() const {
    return pieces_;
  }
  bool direct() const {
    return direct_;
  }
  /// What it shows is there only once all earlier operations are done here.
  bool shows_results() const {
    return shows_results_;
  }

 protected:
  enum class Kind : int32_t {
    kGather = 1,
    kSum,
    kMax,
    kSumWhole,
    kMaxWhole,
    kExchange
  };

  /// @param rows how many pieces of a peer's message share a payload.
  /// @param header_bytes of each row that are not the message's.
  ShmOperation(
      const ShmPort& port,
      Kind kind,
      at::ScalarType dtype,
      int64_t total_bytes,
      int64_t longest_bytes,
      int64_t rows,
      bool shows_results = false,
      int64_t header_bytes = 0);

  void announce(const ShmPort& port, uint64_t turn, const std::byte* address)
      const;
  void check_peers(const ShmPort& port, uint64_t turn) const;
  /// Piece `piece` of a span.
  ByteSpan part(const ByteSpan& whole, uint64_t piece) const;

  int64_t piece_bytes_ = 0;

 private:
  Kind kind_;
  at::ScalarType dtype_;
  int64_t total_bytes_;
  uint64_t pieces_ = 1;
  bool direct_ = false;
  bool shows_results_;
};

/// Every rank's span of `out` is filled from that rank. Covers all-gather,
/// broadcast (one span is everything) and barrier (all are empty).
class ShmGather : public ShmOperation {
 public:
  /// @param own what this rank shows: as long as its span; may be that span.
  ShmGather(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& own,
      std::vector<ByteSpan> spans,
      bool shows_results = false);

  void publish(const ShmPort& port, uint64_t turn, uint64_t piece) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t piece) override;

 private:
  at::Tensor out_;
  at::Tensor own_;
  std::vector<ByteSpan> spans_;
};

/// This rank's span of every rank's `in`, reduced in rank order, into `out`.
class ShmReduce : public ShmOperation {
 public:
  /// @param out as long as the own span of `in`; may be that span.
  ShmReduce(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& in,
      std::vector<ByteSpan> spans,
      ReduceKind kind);

  void publish(const ShmPort& port, uint64_t turn, uint64_t piece) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t piece) override;

 private:
  at::Tensor out_;
  at::Tensor in_;
  std::vector<ByteSpan> spans_;
  ReduceKind kind_;
};

/// All of every rank's `tensor`, reduced in rank order, on every rank: for what
/// fits into a payload.
class ShmReduceWhole : public ShmOperation {
 public:
  static bool fits(const ShmPort& port, const at::Tensor& tensor);
  ShmReduceWhole(
      const ShmPort& port,
      const at::Tensor& tensor,
      ReduceKind kind);

  void publish(const ShmPort& port, uint64_t turn, uint64_t piece) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t piece) override;

 private:
  at::Tensor tensor_;
  ReduceKind kind_;
};

} // namespace tessera
