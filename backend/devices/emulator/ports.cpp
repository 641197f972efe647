// Stream ports of cores and TileControl ports as senders (ports.h).
#include "devices/emulator/ports.h"

#include <utility>

#include "devices/emulator/array.h"
#include "devices/emulator/tile.h"

namespace npu::emulator {

PortSender::PortSender(Array& array, Tile& tile, arch::PortSide side)
    : Sender(array, tile, NoBds{}), side_(side) {}

std::string PortSender::name() const {
  return tile_.name() + (side_ == arch::PortSide::kCore ? " stream output" : " TileControl");
}

int PortSender::slave_port() const { return arch::first_port(tile_.geometry.kind, false, side_); }

void PortSender::send(std::vector<uint32_t> words, bool tlast, Agent* then) {
  transfers_.push_back({std::move(words), tlast, then});
  if (transfers_.size() == 1) begin();
}

void PortSender::begin() {
  Transfer& transfer = transfers_.front();
  run_words(transfer.words, transfer.tlast);
  array_.scheduler().wake(this, this);
}

void PortSender::task_ended() {
  Agent* then = transfers_.front().then;
  transfers_.pop_front();
  if (then != nullptr) array_.scheduler().wake(then, this);
  if (!transfers_.empty()) begin();
}

void PortSender::reset() {
  Sender::reset();
  transfers_.clear();
}

std::string PortReceiver::name() const { return tile_.name() + " stream input"; }

void PortReceiver::take(size_t words, Agent* then) {
  words_.assign(words, 0);
  then_ = then;
  run_words(words_, true);
  array_.scheduler().wake(this, this);
}

void PortReceiver::task_ended() {
  if (Agent* then = std::exchange(then_, nullptr)) array_.scheduler().wake(then, this);
}

void PortReceiver::reset() {
  Receiver::reset();
  then_ = nullptr;
}

}  // namespace npu::emulator
