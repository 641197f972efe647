// The array's side of timed runs: what the command processor's operations cost, and the report.
#include <algorithm>

#include "devices/emulator/array.h"
#include "devices/emulator/timed_trace.h"

namespace npu::emulator {

using stream::Opcode;

namespace {

// Cycles until an operation has taken effect. Distance to the tile does not matter (xdna-emu).
double operation_cycles(const arch::Timing& t, const stream::Operation& op) {
  switch (op.opcode) {
    case Opcode::kBlockWrite:
      return t.block_write(static_cast<double>(op.data.size()));
    case Opcode::kAddressPatch:
      return t.address_patch();
    case Opcode::kMaskWrite:
      return t.cp_mask_write;
    default:
      return t.cp_write;
  }
}

}  // namespace

void Array::set_timing(const arch::Timing* timing, bool data, Recorder* recorder,
                       const std::vector<std::string>& kernels) {
  timeline_ = timing ? std::make_unique<Timeline>(*timing, data, recorder, kernels) : nullptr;
  if (timeline_) {
    timeline_->on_token = [this](uint32_t key) { ++tokens_[key]; };
  }
  scheduler_.set_timeline(timeline_.get());
}

// The array runs on while the command processor works on an operation.
void Array::spend(const stream::Operation& operation) {
  const double cycles = operation_cycles(timeline_->timing(), operation);
  command_busy_ += cycles;
  if (Recorder* recorder = timeline_->recorder())
    recorder->operation(operation, timeline_->now(), cycles);
  const double until = timeline_->now() + cycles;
  while (scheduler_.has_ready() || timeline_->next() <= until) step();
  timeline_->set_now(until);
}

std::vector<double> Array::core_cycles() const {
  std::vector<double> cycles;
  for (const auto& t : tiles_) cycles.push_back(t->core ? t->core->busy() : 0);
  return cycles;
}

// A LOADPDI: nothing else runs. The new cores take over what those before them have worked.
void Array::spend_load(std::span<const double> core_cycles) {
  const double cycles = timeline_->timing().load;
  command_busy_ += cycles;
  timeline_->set_now(timeline_->now() + cycles);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (tiles_[i]->core) tiles_[i]->core->add_busy(core_cycles[i]);
  }
  if (Recorder* recorder = timeline_->recorder()) recorder->find_cores();
}

void Array::begin_timing() {
  if (!timeline_) return;
  timeline_->begin();
  if (Recorder* recorder = timeline_->recorder()) recorder->begin(*this);
  timing_report_ = {};
  command_busy_ = 0;
  for (auto& t : tiles_) {
    if (t->core) t->core->clear_busy();
    for (auto& side : t->channels) {
      for (auto& channel : side) channel->clear_busy();
    }
  }
}

void Array::stream_done() {
  if (timeline_ && timeline_->recorder()) timeline_->recorder()->stream_done(timeline_->now());
}

void Array::end_timing() {
  if (!timeline_) return;
  if (Recorder* recorder = timeline_->recorder()) recorder->finish(timeline_->now());
  RunTiming& r = timing_report_;
  timeline_->report(&r);
  const double total = std::max(r.cycles, 1.0);
  double cores = 0, slowest_core = 0, slowest_stream = 0;
  const auto list = [&r](const Agent& agent) {
    if (agent.busy() > 0) r.agents.emplace_back(agent.name(), agent.busy());
  };
  r.agents.emplace_back("command processor", command_busy_);
  for (auto& t : tiles_) {
    if (t->core) list(*t->core);
    if (t->core && t->core->busy() > 0) {
      ++cores;
      r.core_busy += t->core->busy();
      slowest_core = std::max(slowest_core, t->core->busy());
    }
    for (auto& side : t->channels) {
      for (auto& channel : side) {
        list(*channel);
        slowest_stream = std::max(slowest_stream, channel->busy());
      }
    }
  }
  if (cores > 0) r.core_busy /= cores;
  r.core_blocked = total - r.core_busy;
  r.compute_share = slowest_core / total;
  r.stream_share = slowest_stream / total;
  r.command_share = command_busy_ / total;
}

}  // namespace npu::emulator
