// A login link carries its code behind the #, which browsers do not send. The form is filled in but not submitted: a
// forged link must not sign a visitor in as another user.

const form = document.getElementById("login");
const code = location.hash.slice(1);
if (code) {
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.code.value = code;
  document.getElementById("from-link").hidden = false;
  form.querySelector("button").focus();
}
