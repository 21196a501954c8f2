// A screen for the owner that looks at the server's figures again and again until it is left.

export class WatchScreen {
  /** `pause`: milliseconds between two looks. Who extends this has `look()`, what the server says, and `told(found)`. */
  constructor(app, place, pause) {
    this.app = app;
    this.place = place;
    this.pause = pause;
  }

  leave() {
    this.gone = true;
    clearTimeout(this.timer);
  }

  /** Look now. However often this is called, one timer is under way. */
  async refresh() {
    let wait = this.pause;
    try {
      const found = await this.look();
      if (this.gone) return;
      this.told(found);
    } catch (error) {
      if (this.gone) return;
      this.app.failed(error);
      if (error.status === 401) wait = null; // the link has ended, and with it the looking
    }
    clearTimeout(this.timer);
    if (wait !== null) this.timer = setTimeout(() => this.refresh(), wait);
  }
}
