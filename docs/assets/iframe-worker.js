// Search runs in a worker, and browsers start none for a page that is opened from disk: there it runs in
// a hidden frame. (The theme would load a script for this from elsewhere, unless one has this name.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = []; // messages from before the script was there
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.run(frame.contentWindow, address), { once: true });
      document.body.append(frame);
    }

    run(inside, address) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        this.postMessage = (data) =>
          inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        this.waiting.forEach(this.postMessage);
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
