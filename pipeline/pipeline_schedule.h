// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PipelineSchedule` lists the instructions of every pipeline stage in one
// step.

#include <string>
#include <vector>

namespace tessera {

/// How a model and a batch are cut. The model is cut into stages * chunks
/// consecutive pieces; pipeline stage s holds the pieces s, s + stages, s + 2 *
/// stages and so on, as its chunks 0, 1, 2 ... With one chunk a piece is a
/// pipeline stage.
struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;

  int model_chunks() const {
    return stages * chunks;
  }
  int model_chunk(int stage, int chunk) const {
    return chunk * stages + stage;
  }
  int stage_of(int model_chunk) const {
    return model_chunk % stages;
  }
  int chunk_of(int model_chunk) const {
    return model_chunk / stages;
  }
  /// Whether neighboring pieces lie on different pipeline stages, so that data
  /// between them has to be sent.
  bool has_transfers() const {
    return stages > 1;
  }

  bool operator==(const PipelineShape&) const = default;
};

enum class PipelineOp {
  kForward,
  kBackward, ///< all gradients of a chunk at once
  kBackwardInput, ///< the gradient of a chunk's input only
  kBackwardWeight, ///< the gradients of its weights, after kBackwardInput
  kSendActivation, ///< the output of a chunk's forward, to the next piece
  kReceiveActivation, ///< the input of a chunk, from the piece before it
  kSendGradient, ///< of a chunk's input, to the piece before it
  kReceiveGradient, ///< of a chunk's output, from the next piece
  kReduceGradients, ///< a chunk's weight gradients are complete in this step
};

/// True for the four operations that send or receive.
bool is_transfer(PipelineOp op);
bool is_send(PipelineOp op);
/// True for the three kinds of backward.
bool is_backward(PipelineOp op);

struct PipelineInstruction {
  PipelineOp op = PipelineOp::kForward;
  int micro_batch = 0; ///< 0 for kReduceGradients
  int chunk = 0; ///< of the pipeline stage whose list has this

  bool operator==(const PipelineInstruction&) const = default;
};

/// "forward of micro-batch 2 on chunk 0"
std::string describe(const PipelineInstruction& instruction);

/// [Note: transfers between stages] Consecutive transfers form a batch: a
/// pipeline stage issues all of them at once and proceeds when all are done.
/// Each direction between two pipeline stages is a queue: activations and
/// gradients alike are received in the order in which they were sent.
///
/// The validator assumes the least that a transport can offer, a rendezvous: a
/// send is done when the other side has issued the matching receive. More
/// buffering, or receives that are issued first and waited for later, let a
/// pipeline stage proceed sooner and never later, so a schedule that terminates
/// under a rendezvous terminates under these as well.
struct PipelineSchedule {
  PipelineShape shape;
  /// By pipeline stage; each list is executed in order.
  std::vector<std::vector<PipelineInstruction>> stages;
  /// False: forwards only, which store nothing.
  bool trains = true;
};

/// The other end of a transfer.
struct TransferEnd {
  int stage = 0;
  PipelineInstruction instruction;
};

/// @param stage the pipeline stage whose list holds `transfer`.
/// @throws tessera::Error if there is no such neighbor: the first piece of the
///   model has none before it, the last none after it.
TransferEnd other_end(
    const PipelineShape& shape,
    int stage,
    const PipelineInstruction& transfer);

/// One line per pipeline stage, in columns: "F0 F1 r0 B0 ..." with F, B, I, W
/// for the computations, s/r for sends and receives of activations, S/R for
/// those of gradients, and + for a chunk whose gradients are complete. A chunk
/// other than 0 follows a dot: "F3.1".
std::string describe(const PipelineSchedule& schedule);

} // namespace tessera
