// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmOperation` is one collective over shared memory: what a rank publishes
// and consumes in each turn of the ring buffer.

#include "tessera/runtime/comm/byte_span.h"
#include "tessera/runtime/comm/shm_peers.h"
#include "tessera/runtime/comm/shm_reduce.h"
#include "tessera/runtime/comm/shm_region.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::runtime {

/// Divides a buffer of `numel` elements over `ranks`, in order; the last spans
/// may be shorter. Returned in bytes.
std::vector<ByteSpan> even_spans(int64_t numel, int64_t itemsize, int ranks);

/// A rank's view of the region while it runs an operation.
struct ShmPort {
  const ShmRegion& region;
  const ShmPeers& peers;
  int rank;
  int ranks;
  /// The number of each rank in the job, for messages.
  const std::vector<int>& job_ranks;

  int in_job(int r) const {
    return job_ranks[static_cast<size_t>(r)];
  }
};

/// One collective. A rank publishes its data either in the payloads, piece by
/// piece with one turn each (staged), or as an address in its own memory, in
/// one turn (direct). A staged operation is over for a rank when it has
/// consumed everything from its peers; a direct one when its peers have also
/// consumed everything from it.
class ShmOperation {
 public:
  virtual ~ShmOperation() = default;
  ShmOperation(const ShmOperation&) = delete;
  ShmOperation& operator=(const ShmOperation&) = delete;

  /// Publishes piece `chunk` in turn `turn`.
  virtual void publish(const ShmPort& port, uint64_t turn, uint64_t chunk) = 0;

  /// Consumes what all peers have published in turn `turn`.
  /// @throws tessera::Error when a peer has published another operation.
  virtual void consume(const ShmPort& port, uint64_t turn, uint64_t chunk) = 0;

  uint64_t chunks() const {
    return chunks_;
  }
  bool direct() const {
    return direct_;
  }
  /// True if the published data is ready only after all earlier operations are
  /// done on this rank.
  bool shows_results() const {
    return shows_results_;
  }

 protected:
  /// @param rows number of pieces of a peer's message that share a payload.
  /// @param header_bytes bytes of each row that precede the message.
  ShmOperation(
      const ShmPort& port,
      CollectiveKind kind,
      at::ScalarType dtype,
      int64_t total_bytes,
      int64_t longest_bytes,
      int64_t rows,
      bool shows_results = false,
      int64_t header_bytes = 0);

  void announce(const ShmPort& port, uint64_t turn, const std::byte* address)
      const;
  void check_peers(const ShmPort& port, uint64_t turn) const;
  /// Piece `chunk` of a span.
  ByteSpan part(const ByteSpan& full, uint64_t chunk) const;

  int64_t chunk_bytes_ = 0;

 private:
  CollectiveKind kind_;
  at::ScalarType dtype_;
  int64_t total_bytes_;
  uint64_t chunks_ = 1;
  bool direct_ = false;
  bool shows_results_;
};

/// Fills each rank's span of `out` with the data of that rank. Implements
/// all-gather, broadcast (one span covers everything) and barrier (all spans
/// are empty).
class ShmGather : public ShmOperation {
 public:
  /// @param local the data of this rank, as long as its span; may be that span.
  ShmGather(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& local,
      std::vector<ByteSpan> spans,
      bool shows_results = false);

  void publish(const ShmPort& port, uint64_t turn, uint64_t chunk) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t chunk) override;

 private:
  at::Tensor out_;
  at::Tensor local_;
  std::vector<ByteSpan> spans_;
};

/// Reduces this rank's span of every rank's `in`, in rank order, into `out`.
class ShmReduce : public ShmOperation {
 public:
  /// @param out as long as this rank's span of `in`; may be that span.
  ShmReduce(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& in,
      std::vector<ByteSpan> spans,
      ReduceKind kind);

  void publish(const ShmPort& port, uint64_t turn, uint64_t chunk) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t chunk) override;

 private:
  at::Tensor out_;
  at::Tensor in_;
  std::vector<ByteSpan> spans_;
  ReduceKind kind_;
};

/// Reduces all of every rank's `tensor`, in rank order, on every rank; for
/// tensors that fit in a payload.
class ShmFullReduce : public ShmOperation {
 public:
  static bool fits(const ShmPort& port, const at::Tensor& tensor);
  ShmFullReduce(const ShmPort& port, const at::Tensor& tensor, ReduceKind kind);

  void publish(const ShmPort& port, uint64_t turn, uint64_t chunk) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t chunk) override;

 private:
  at::Tensor tensor_;
  ReduceKind kind_;
};

} // namespace tessera::runtime
